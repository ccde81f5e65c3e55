"""Operands by element type: bytes, slices of k, matrix rates, what is refused, and checkpoints end to end."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pydantic import ValidationError

from t3sim.cli import main
from t3sim.config.experiment import GemmShape, OperandTypes, TilingSpec
from t3sim.workload.operands import bytes_of_a, bytes_of_b, k_slice_of, operand_bytes, slices_of, whole_k
from t3sim.workload.simulated_types import simulated_types
from t3sim.workload.tiling import make_tile_trace, moved_bytes
from t3sim.workload.tiling_rules import transposed

TILING = TilingSpec(workgroup_tile=(64, 64), wavefront_tile=(32, 64), k_slice=64, prefetch_depth=1)
RATES = "{tf32: 0.5, fp8: 2, fp4: 4}"
LLAMA = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 4, "torch_dtype": "bfloat16",
}  # fmt: skip


def shape(element: str, weights: str | None = None, k: int = 4096) -> GemmShape:
    return GemmShape.model_validate({"m": 96, "n": 160, "k": k, "element": element, "weights": weights})


@pytest.mark.parametrize(
    ("element", "bits", "in_slice", "whole"),
    [
        ("fp16", 16.0, 64, 64), ("bf16", 16.0, 64, 64), ("fp32", 32.0, 32, 32), ("fp8", 8.0, 128, 128),
        ("fp8_rowwise", 8.0, 128, 128), ("fp8_block", 8.25, 124, 128), ("mxfp8", 8.25, 124, 128),
        ("mxfp4", 4.25, 240, 256), ("nvfp4", 4.5, 227, 256), ("int8", 8.0, 128, 128),
    ],
)  # fmt: skip
def test_bytes_and_slices(element: str, bits: float, in_slice: int, whole: int) -> None:
    """A slice is a line of 128 B: elements and their scales; k is padded to whole elements of such a line."""
    gemm = shape(element)
    assert operand_bytes(gemm) == (96 + 160) * 4096 * bits / 8
    assert k_slice_of(gemm, TILING) == in_slice
    assert slices_of(gemm, TILING) == -(-4096 // in_slice)
    assert whole_k(shape(element, k=whole + 1), TILING) == 2 * whole


def test_weights_of_four_bits_are_a_quarter_of_b() -> None:
    gemm = shape("bf16", "int4")
    assert bytes_of_a(gemm, 96 * 4096) == 96 * 4096 * 2
    assert bytes_of_b(gemm, 160 * 4096) == 160 * 4096 * (4 + 16 / 128) / 8
    assert slices_of(gemm, TILING) == 4096 // 64
    turned, _ = transposed(gemm, TILING)
    assert (turned.m, turned.n, turned.element, turned.weights) == (160, 96, "int4", "bf16")


def test_collectives_carry_a_in_its_type_and_outputs_in_16_bits() -> None:
    assert moved_bytes(shape("fp8"), "ag-gemm") == 96 * 4096
    assert moved_bytes(shape("fp8"), "gemm-rs") == 96 * 160 * 2


def test_fp16_is_not_written() -> None:
    """So that files and digests of FP16 stay what they were."""
    assert shape("fp16").model_dump() == {"m": 96, "n": 160, "k": 4096}
    assert make_tile_trace(shape("fp8"), TILING, 2).gemm.model_dump()["element"] == "fp8"


@pytest.mark.parametrize(("element", "weights"), [("int4", None), ("fp8", "bf16"), ("fp9", None)])
def test_refused_types(element: str, weights: str | None) -> None:
    with pytest.raises(ValidationError, match=element):
        shape(element, weights)


@pytest.mark.parametrize(
    ("weights", "activations", "fields"),
    [
        ("bf16", "bf16", {"element": "bf16"}), ("fp16", "fp16", {}), ("16-bit", "16-bit", {}), ("unknown", "bf16", {}),
        ("fp8", "fp8", {"element": "fp8"}), ("int4", "16-bit", {"element": "bf16", "weights": "int4"}),
        ("nvfp4", "fp8", {"element": "fp8", "weights": "nvfp4"}), ("int5", "bf16", {}), ("fp32", "fp32", {}),
        ("int4", "fp16", {"weights": "int4"}),
    ],
)  # fmt: skip
def test_types_of_checkpoints(weights: str, activations: str, fields: dict[str, str]) -> None:
    assert simulated_types(OperandTypes(weights=weights, activations=activations)) == fields


def t3sim(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


def run(folder: Path, workload: dict[str, Any], *more: str) -> dict[str, str]:
    """The result of the GEMM on a machine with a large L2, by the command line, with values carried along."""
    tree = {
        "name": "types", "strategy": "sequential", "tiling": "gemm-64x64", "workload": workload,
        "machine": {"preset": "t3-tiny", "gpu": {"l2": {"capacity": "4 MiB"}}},
    }  # fmt: skip
    folder.mkdir()
    (folder / "e.yaml").write_text(json.dumps(tree), encoding="utf-8")
    settings = [word for one in more for word in ("-s", one)]
    result = t3sim("run", folder / "e.yaml", "--data", "--no-figures", "-o", folder / "out", *settings)
    assert result.exit_code == 0, result.output
    with (folder / "out" / "results.csv").open(encoding="utf-8") as file:
        return next(csv.DictReader(file))


def test_fp8_at_twice_the_rate_is_fp16_with_half_of_k(tmp_path: Path) -> None:
    """Lines, slices and time of a slice are the same, so times and traffic are, to the last bit."""
    rates = f"machine.gpu.compute_unit.matrix_rates={RATES}"
    gemms = {"fp16": 512, "bf16": 512, "fp8": 1024, "fp32": 256}
    found = {
        element: run(tmp_path / element, {"tp": 2, "gemm": {"m": 128, "n": 128, "k": k, "element": element}}, rates)
        for element, k in gemms.items()
    }
    for name in ("gemm_us", "time_us", "dram_gemm_read_bytes", "link_bytes"):
        assert len({one[name] for one in found.values()}) == 1, name


def test_narrow_weights_are_read_as_they_are_stored(tmp_path: Path) -> None:
    gemm = {"m": 128, "n": 128, "k": 512, "element": "bf16"}
    whole, narrow = (
        float(run(tmp_path / name, {"tp": 2, "gemm": {**gemm, **more}})["dram_gemm_read_bytes"])
        for name, more in (("bf16", {}), ("int4", {"weights": "int4"}))
    )
    assert whole - narrow == pytest.approx(128 * 512 * 2 * (1 - 33 / 128), rel=0.02)


def test_a_type_without_a_rate_is_refused_at_its_key(tmp_path: Path) -> None:
    path = tmp_path / "e.yaml"
    path.write_text(
        "name: e\nmachine: t3-tiny\nstrategy: sequential\n"
        "workload: {tp: 2, gemm: {m: 128, n: 128, k: 128, element: nvfp4}}\n",
        encoding="utf-8",
    )
    result = t3sim("run", path)
    assert result.exit_code == 2
    assert ":4:" in result.stderr
    assert "workload.gemm.element" in result.stderr
    assert "matrix_rates.fp4" in result.stderr


@pytest.mark.parametrize(
    ("quantization", "rates", "element", "weights"),
    [
        (None, "null", "bf16", None),
        ({"quant_method": "fp8"}, RATES, "fp8", None),
        ({"quant_method": "fp8"}, "null", "bf16", "fp8"),  # as Marlin does where there is no FP8
        ({"quant_method": "awq", "bits": 4}, RATES, "bf16", "int4"),
        ({"quant_algo": "NVFP4"}, RATES, "nvfp4", None),
        ({"quant_algo": "NVFP4"}, "null", "bf16", "nvfp4"),
    ],
)
def test_a_checkpoint_reaches_the_gemm(
    tmp_path: Path, quantization: dict[str, Any] | None, rates: str, element: str, weights: str | None
) -> None:
    more = {} if quantization is None else {"quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps({**LLAMA, **more}), encoding="utf-8")
    workload = {"model": str(tmp_path / "config.json"), "sublayer": "FC-2", "tp": 2, "tokens": 64}
    run(tmp_path / "run", workload, f"machine.gpu.compute_unit.matrix_rates={rates}")
    point = json.loads((tmp_path / "run" / "out" / "resolved.json").read_text(encoding="utf-8"))["points"][0]
    gemm = point["workload"]["gemm"]
    assert (gemm.get("element", "fp16"), gemm.get("weights")) == (element, weights)


def test_show_counts_the_bytes_of_the_type(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    of_type = {}
    for method in (None, "fp8"):
        more = {} if method is None else {"quantization_config": {"quant_method": method}}
        path.write_text(json.dumps({**LLAMA, **more}), encoding="utf-8")
        lines = t3sim("workload", "show", path, "--tp", 2, "--tokens", 64).output.splitlines()
        of_type[method] = next(row for row in map(str.split, lines) if row[:1] == ["FC-2"])
    flops, output = 2 * 64 * 512 * 512, 64 * 512 * 2
    operands = (64 + 512) * 512
    assert of_type[None][-3] == f"{flops / (output + 2 * operands):.0f}"
    assert of_type["fp8"][-3] == f"{flops / (output + operands):.0f}"
