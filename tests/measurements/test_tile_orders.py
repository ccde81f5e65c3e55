"""Kernels that Proton, iris and Accel-Sim recorded become tile traces; small files in their formats, written here."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from t3sim.cli.trace import trace
from t3sim.errors import InputDataError, T3SimError, UsageError
from t3sim.workload.trace_file import check_trace, read_manifest, read_trace

SHAPE = ["--gemm", "512,256,128", "--tp", "4", "--tiling", "gemm-64x64"]  # 8 x 4 tiles
N_TILES = 32


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(trace, ["import", *map(str, arguments)])


def tiles_of(path: Path) -> list[int]:
    """Return row-major numbers of tiles in the order of a trace."""
    assert check_trace(path) == []
    workgroups = read_trace(path).workgroups
    return list((workgroups["row"] // 64 * 4 + workgroups["column"] // 64).tolist())


def proton(path: Path, order: list[int], *, blocks: int = N_TILES, kernel: str = "matmul", more: int = 0) -> Path:
    """Write what Proton writes of a kernel whose tiles start in *order*; tile t is of block t modulo *blocks*."""
    events = []
    for place, tile in enumerate(order):
        for warp in range(2):
            for scope, begin in (("tile", 0.0), ("mma", 0.1), ("mma", 0.2)):
                events.append({
                    "cname": "cq_build_passed", "name": scope, "cat": kernel, "ph": "X",
                    "pid": f"{kernel} Core{place % 4} CTA{tile % blocks}",
                    "tid": f"warp {warp} (line {int(scope != 'tile')})",
                    "ts": place + begin + warp / 100, "dur": 0.05, "args": {"Frequency (MHz)": 1000.0},
                })  # fmt: skip
    events += [{"name": "tile", "ph": "X", "pid": "other Core0 CTA0", "tid": "warp 0 (line 0)", "ts": 0.0}] * more
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}), encoding="utf-8")
    return path


def iris(path: Path, order: list[int], ranks: int = 1) -> Path:
    events: list[dict[str, object]] = [{"name": "process_name", "ph": "M", "pid": 0, "args": {"name": "Rank 0"}}]
    for rank in range(ranks):
        for place, tile in enumerate(order):
            for name, later in (("compute", 0), ("put", 5)):
                events.append({
                    "name": name, "cat": "iris", "ph": "X", "ts": 10 * place + later, "dur": 4, "pid": rank,
                    "tid": f"XCC0_CU{place % 8}", "args": {"program_id": tile, "pid_m": tile // 4, "pid_n": tile % 4},
                })  # fmt: skip
    path.write_text(json.dumps({"traceEvents": events, "metadata": {"world_size": ranks}}), encoding="utf-8")
    return path


def stores(tile: int, form: str) -> Iterator[str]:
    """Yield the stores of a tile of 64 x 64, a row of 128 B for each warp instruction, as a version of the tracer."""
    for row in range(64):
        address = 0x7F0000000000 + ((tile // 4 * 64 + row) * 256 + tile % 4 * 64) * 2
        lists = " ".join(f"0x{address + 4 * lane:x}" for lane in range(32))
        forms = {
            "list": f"0120 ffffffff 0 STG.E 2 R4 R6 4 0 {lists} 0",
            "stride": f"0120 ffffffff 0 STG.E 2 R4 R6 4 1 0x{address:x} 4 0",
            "deltas": f"0120 0000ffff 1 R9 ST.E.64 2 R4 R6 8 2 0x{address:x} {'8 ' * 15}0",
            "tma": f"0120 00000001 0 UTMASTG.2D 1 R4 128 4 0x{address:x} 2 64",
        }
        yield forms[form]


def accel_sim(path: Path, blocks: list[list[int]], form: str = "list", version: int = 4) -> Path:
    """Write a kernel trace: each block stores its tiles one after the other; blocks lie in the file in random order."""
    lines = [
        "-kernel name = gemm_kernel", "-kernel id = 1", f"-grid dim = (4,{len(blocks) // 4},1)",
        "-block dim = (32,1,1)", "-binary version = 80", f"-accelsim tracer version = {version}", "",
        "#traces format = PC mask dest_num [reg_dests] opcode src_num [reg_srcs] mem_width [mem_addresses]", "",
    ]  # fmt: skip
    for block in random.Random(3).sample(range(len(blocks)), len(blocks)):
        body = [
            "0000 ffffffff 1 R1 IMAD.MOV.U32 2 R255 R255 0 0",
            "0010 ffffffff 1 R2 LDG.E 1 R4 4 1 0x7e0000000000 4 0",
        ]
        body += ["0020 ffffffff 0 STS 2 R4 R6 4 1 0x100 4 0", "0030 00000000 0 STG.E 2 R4 R6 4 0 0"]
        body += [line for tile in blocks[block] for line in stores(tile, form)]
        prefix = f"{block % 4} {block // 4} 0 0 " if version < 3 else ""
        lines += ["#BEGIN_TB", "", f"thread block = {block % 4},{block // 4},0", "", "warp = 0", f"insts = {len(body)}"]
        lines += [prefix + line for line in body] + ["", "#END_TB", ""]
    content = "\n".join(lines).encode()
    path.write_bytes(lzma.compress(content) if path.suffix == ".xz" else content)
    return path


def test_a_kernel_of_one_tile_for_each_block_needs_no_scope(tmp_path: Path) -> None:
    order = random.Random(1).sample(range(N_TILES), N_TILES)
    done = invoke(proton(tmp_path / "t.json", order), *SHAPE, "-o", tmp_path / "x.parquet")
    assert done.exit_code == 0, done.output
    assert tiles_of(tmp_path / "x.parquet") == order
    assert read_manifest(tmp_path / "x.parquet").origin == "recorded by another program: matmul; t.json"
    assert np.bincount(read_trace(tmp_path / "x.parquet").workgroups["chunk"]).tolist() == [8] * 4


def test_a_persistent_kernel_names_the_scope_of_a_tile(tmp_path: Path) -> None:
    file = proton(tmp_path / "t.json", list(range(N_TILES)), blocks=8)
    refused = invoke(file, *SHAPE, "-o", tmp_path / "x.parquet")
    assert isinstance(refused.exception, UsageError)
    assert "--scope" in str(refused.exception)
    assert "mma, tile" in str(refused.exception)
    done = invoke(file, *SHAPE, "--scope", "tile", "-o", tmp_path / "x.parquet")
    assert done.exit_code == 0, done.output
    assert tiles_of(tmp_path / "x.parquet") == list(range(N_TILES))
    several = invoke(file, *SHAPE, "--scope", "mma", "-o", tmp_path / "y.parquet")  # two of them in each tile
    assert isinstance(several.exception, InputDataError)
    assert "tile 32 is recorded, the GEMM has 32" in str(several.exception)


def test_blocks_count_tiles_in_the_groups_of_the_tiling(tmp_path: Path) -> None:
    file = proton(tmp_path / "t.json", list(range(N_TILES)))
    shape = ["--gemm", "1024,1024,128", "--tp", "4", "--tiling", "triton-128x256"]  # 8 x 4 tiles, in groups of 8 rows
    done = invoke(file, *shape, "-o", tmp_path / "x.parquet")
    assert done.exit_code == 0, done.output
    workgroups = read_trace(tmp_path / "x.parquet").workgroups
    assert (workgroups["row"][:9] // 128).tolist() == [*range(8), 0]
    assert (workgroups["column"][:9] // 256).tolist() == [0] * 8 + [1]


def test_of_several_kernels_one_is_named(tmp_path: Path) -> None:
    file = proton(tmp_path / "t.json", list(range(N_TILES)), more=1)
    refused = invoke(file, *SHAPE, "-o", tmp_path / "x.parquet")
    assert isinstance(refused.exception, UsageError)
    assert "matmul, other" in str(refused.exception)
    assert invoke(file, *SHAPE, "--kernel", "matmul", "-o", tmp_path / "x.parquet").exit_code == 0


def test_iris_names_the_tiles_itself(tmp_path: Path) -> None:
    order = random.Random(2).sample(range(N_TILES), N_TILES)
    file = iris(tmp_path / "t.json", order, ranks=2)
    refused = invoke(file, *SHAPE, "-o", tmp_path / "x.parquet")
    assert isinstance(refused.exception, UsageError)
    assert "--rank" in str(refused.exception)
    done = invoke(file, *SHAPE, "--rank", "1", "--scope", "put", "-o", tmp_path / "x.parquet")
    assert done.exit_code == 0, done.output
    assert tiles_of(tmp_path / "x.parquet") == order


@pytest.mark.parametrize("form", ["list", "stride", "deltas", "tma"])
@pytest.mark.parametrize(("name", "version"), [("kernel-1.traceg", 4), ("kernel-12.traceg.xz", 2)])
def test_tiles_of_accel_sim_are_where_blocks_store(form: str, name: str, version: int, tmp_path: Path) -> None:
    order = random.Random(4).sample(range(N_TILES), N_TILES)  # of the blocks, which the kernel swizzles
    file = accel_sim(tmp_path / name, [[tile] for tile in order], form, version)
    done = invoke(file, *SHAPE, "-o", tmp_path / "x.parquet")
    assert done.exit_code == 0, done.output
    assert tiles_of(tmp_path / "x.parquet") == order


def test_tiles_of_persistent_blocks_alternate(tmp_path: Path) -> None:
    blocks = [[block + 8 * i for i in range(4)] for block in range(8)]
    done = invoke(accel_sim(tmp_path / "kernel-1.traceg", blocks), *SHAPE, "-o", tmp_path / "x.parquet")
    assert done.exit_code == 0, done.output
    assert tiles_of(tmp_path / "x.parquet") == list(range(N_TILES))


@pytest.mark.parametrize(
    ("write", "arguments", "words"),
    [
        (lambda path: proton(path, list(range(31))), SHAPE, "--scope"),
        (lambda path: iris(path, list(range(31))), SHAPE, "1 of the 32 tiles of the output are in no record"),
        (lambda path: iris(path, list(range(N_TILES))), SHAPE[2:], "--gemm M,N,K and --tp"),
        (lambda path: iris(path, list(range(N_TILES))), [*SHAPE, "--model", "T-NLG"], "--model"),
        (lambda path: path.write_text('{"traceEvents": [{"ph": "X", "pid": 1}]}'), SHAPE, "names a thread block"),
        (lambda path: path.write_text('{"results": []}'), SHAPE, "traceEvents"),
        (lambda path: path.write_text("{"), SHAPE, "JSON"),
        (
            lambda path: path.write_text(
                '{"traceEvents": [{"ph": "X", "cat": "iris", "pid": 0, "ts": 1, "args": {}}]}'
            ),
            SHAPE,
            "pid_m",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(
    write: Callable[[Path], object], arguments: list[str], words: str, tmp_path: Path
) -> None:
    write(tmp_path / "t.json")
    done = invoke(tmp_path / "t.json", *arguments, "-o", tmp_path / "x.parquet")
    assert isinstance(done.exception, T3SimError)
    assert words in str(done.exception)
    assert not (tmp_path / "x.parquet").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("STG.E", "STS"), "no store to global memory"),
        (("0x7f0000000000", "nowhere"), "kernel-1.traceg:"),
        (("thread block = 1,0,0", "thread block = 1"), "three whole numbers"),
    ],
)
def test_damaged_traces_of_accel_sim_are_refused(change: tuple[str, str], words: str, tmp_path: Path) -> None:
    file = accel_sim(tmp_path / "kernel-1.traceg", [[tile] for tile in range(N_TILES)])
    file.write_text(file.read_text().replace(*change))
    done = invoke(file, *SHAPE, "-o", tmp_path / "x.parquet")
    assert isinstance(done.exception, InputDataError)
    assert words in str(done.exception)


def test_another_shape_is_refused(tmp_path: Path) -> None:
    file = accel_sim(tmp_path / "kernel-1.traceg", [[tile] for tile in range(N_TILES)])
    shape = ["--gemm", "512,512,128", "--tp", "4", "--tiling", "gemm-64x64"]
    done = invoke(file, *shape, "-o", tmp_path / "x.parquet")
    assert isinstance(done.exception, InputDataError)
