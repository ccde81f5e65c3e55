"""Outputs by element type: bytes with scales, what tiles store, what is refused where, traces, `workload show`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from t3sim.cli import main
from t3sim.config.element_types import ELEMENT_TYPES
from t3sim.config.experiment import GemmShape, TilingSpec
from t3sim.workload.outputs import granules_of, output_bytes
from t3sim.workload.tiling import expected_chunk_bytes, make_tile_trace, moved_bytes, output_pitch_bytes
from t3sim.workload.tiling_rules import output_findings, split_findings
from t3sim.workload.trace_file import content_digest, read_trace, write_trace

WIDE = TilingSpec(workgroup_tile=(64, 128), wavefront_tile=(64, 64), k_slice=64, prefetch_depth=1)
NARROW = WIDE.model_copy(update={"workgroup_tile": (64, 64)})
BITS = {
    "fp16": 16,
    "bf16": 16,
    "fp32": 32,
    "fp8": 8,
    "int8": 8,
    "mxfp8": 8.25,
    "fp8_block": 8.25,
    "nvfp4": 4.5,
    "mxfp4": 4.25,
}


def shape(output: str | None, m: int = 256, n: int = 384) -> GemmShape:
    return GemmShape.model_validate({"m": m, "n": n, "k": 128, "output": output})


@pytest.mark.parametrize("output", BITS)
def test_bytes_of_the_array_of_its_collective_and_of_its_tiles(output: str) -> None:
    """By hand: bits of an element and its share of a scale; whole tiles store exactly as many."""
    gemm = shape(output)
    n_bytes = 256 * 384 * BITS[output] / 8
    assert output_bytes(gemm) == moved_bytes(gemm, "gemm-rs") == n_bytes
    assert moved_bytes(gemm, "ag-gemm") == 256 * 128 * 2
    assert output_pitch_bytes(gemm) == 384 * int(BITS[output]) // 8 // 128 * 128 + 128 * (
        384 * int(BITS[output]) // 8 % 128 > 0
    )
    assert expected_chunk_bytes(make_tile_trace(gemm, WIDE, 4), 64).tolist() == [n_bytes / 4] * 4


@pytest.mark.parametrize("output", BITS)
@pytest.mark.parametrize("tiling", [WIDE, NARROW])
def test_wavefronts_store_each_place_of_a_tile_once(output: str, tiling: TilingSpec) -> None:
    """Do the granules of wavefronts cover those of the tiles, in places of their own, at ragged edges too?"""
    gemm = shape(output, m=200, n=330)
    if output_findings(gemm, tiling):
        assert (output, tiling) in [("fp8_block", NARROW), ("nvfp4", NARROW), ("mxfp4", NARROW)]
        return
    trace = make_tile_trace(gemm, tiling, 1)
    cover = []
    for rectangles in (trace.workgroups, trace.wavefront_tiles()):
        made = granules_of(rectangles, 64, trace.element)
        count = np.zeros((ELEMENT_TYPES[output].stored_rows(200), 40), np.int64)
        for row, n_rows, column, width in zip(*made, strict=True):
            count[row : row + n_rows, column : column + width] += 1
        cover.append(count)
    assert cover[0].max() == 1
    assert (cover[0] == cover[1]).all()
    assert cover[0].sum(axis=1).min() > 0


def test_partial_sums_fill_lines_of_the_output_and_have_no_scales() -> None:
    assert split_findings(shape("fp8"), WIDE.model_copy(update={"split_k": 2})) == []
    [(key, message)] = split_findings(shape("fp8"), NARROW.model_copy(update={"split_k": 2}))
    assert (key, "64 wide" in message) == ("tiling.split_k", True)
    assert "mxfp8" in split_findings(shape("mxfp8"), WIDE.model_copy(update={"split_k": 2}))[0][1]


def test_a_trace_has_the_type_of_its_output(tmp_path: Path) -> None:
    traces = [make_tile_trace(shape(output), WIDE, 4) for output in ("fp8", None)]
    write_trace(tmp_path / "t.parquet", traces[0], "test")
    assert read_trace(tmp_path / "t.parquet").gemm.output == "fp8"
    assert content_digest(traces[0]) != content_digest(traces[1])
    shown = CliRunner().invoke(main, ["trace", "show", str(tmp_path / "t.parquet")]).output
    assert "output 0.09 MiB (98304 B) in fp8" in shown


def ran(tmp_path: Path, command: str, **keys: Any) -> Result:
    """Run a command on an experiment whose output type is in line 5, from column 11 on."""
    given = {"machine": "t3-tiny", "strategy": "sequential", "operator": "gemm-rs", "output": "fp8", **keys}
    text = (
        "name: x\nmachine: {machine}\nstrategy: {strategy}\n"
        "workload: {{tp: 4, operator: {operator}, gemm: {{m: 512, n: 256, k: 128,"
        "\n  output: {output}}}}}\ntiling: {{preset: gemm-64x64}}\n"
    )
    path = tmp_path / "x.yaml"
    path.write_text(text.format(**given))
    return CliRunner().invoke(main, [*command.split(), str(path)])


SWITCHED = "{preset: t3-tiny, link: {topology: switch, ingress_buffer: 8 KiB}}"
REFUSED = {
    "scales that nothing adds up": ({"output": "mxfp8"}, "no collective adds up"),
    "the scale of a row": ({"output": "fp8_rowwise", "operator": "ag-gemm"}, "the whole row"),
    "a type of weights": ({"output": "int4", "operator": "ag-gemm"}, "weights"),
    "tiles too narrow": ({"output": "nvfp4", "operator": "ag-gemm"}, "another kernel"),
    "near memory": ({"strategy": "t3"}, "near memory adds up fp16, bf16, fp32"),
    "in the switch": ({"strategy": "multimem-rs", "machine": "h200"}, "the switch adds up fp16, bf16, fp32"),
    "a kernel of vLLM": (
        {"strategy": "{name: sequential, all_reduce: vllm-multimem}", "machine": "h200", "operator": "gemm-ar"},
        "vllm-multimem adds up fp16, bf16, fp32",
    ),
    "NCCL before Hopper": ({"machine": "a100"}, "the library adds up fp16, bf16, fp32"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_stored_or_added_up_is_refused_at_its_place(name: str, tmp_path: Path) -> None:
    keys, words = REFUSED[name]
    found = ran(tmp_path, "config check", **keys)
    assert found.exit_code == 2
    assert "x.yaml:5:11: workload.gemm.output: " in found.output
    assert words in found.output


@pytest.mark.parametrize("keys", [
    {}, {"output": "fp32", "strategy": "t3"}, {"machine": "b200", "strategy": "multimem-rs"},
    {"output": "mxfp8", "operator": "ag-gemm"}, {"output": "mxfp8", "operator": "gemm-a2a", "machine": SWITCHED},
])  # fmt: skip
def test_what_can_is_not(keys: dict[str, str], tmp_path: Path) -> None:
    found = ran(tmp_path, "config check", **keys)
    assert (found.exit_code, found.output.count("problem")) == (0, 1)


def test_workload_show_has_the_bytes_of_the_type(tmp_path: Path) -> None:
    """512 x 256 elements: 0.3 MB in FP16, 0.5 in FP32, 0.1 in FP8; twice three quarters of it are sent."""
    for output, stored, sent in (("fp16", "0.3", "0.4"), ("fp32", "0.5", "0.8"), ("fp8", "0.1", "0.2")):
        words = ran(tmp_path, "workload show", output=output).output.split()
        row = words[words.index("512") :][:8]
        assert (row[4], row[6]) == (stored, sent), row


def test_outputs_of_a_model(tmp_path: Path) -> None:
    keys = "name: m\nmachine: t3-tiny\nstrategy: {}\nworkload: {{model: Mega-GPT-2, sublayer: FC-2, tokens: 64, tp: 4,"
    keys += "\n  output: fp8}}\n"
    path = tmp_path / "m.yaml"
    path.write_text(keys.format("sequential") + "tiling: gemm-64x64\n")
    found = CliRunner().invoke(main, ["config", "show", str(path)])
    assert "workload.gemm.output" in found.output
    path.write_text(keys.format("t3") + "tiling: gemm-64x64\n")
    assert "m.yaml:5:11: workload.output: " in CliRunner().invoke(main, ["config", "check", str(path)]).output
