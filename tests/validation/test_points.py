"""Every measured row meets its simulation, once, and errors are what their definition says."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from t3lab.cli.validate import machine_of
from t3lab.measurements.reading import read_measurements
from t3lab.measurements.samples import Measurement
from t3lab.validation.point import Point, Term
from t3lab.validation.points import Points, compared, read_calibration, simulations_of
from t3lab.validation.simulation import Outcome
from t3lab.validation.simulations.alone import CollectiveAlone, GemmAlone
from t3lab.validation.simulations.concurrent import SideBySide
from t3lab.validation.simulations.tiles import RecordedTiles, Scatter
from t3lab.validation.tables import validation_csv
from t3sim.config.presets import load_kernels, load_tiling
from t3sim.errors import InputDataError
from t3sim.system.parts import PhaseStore
from tests.harness.measured import ROWS, collective, of_h200s, tiling, tiny, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "measured")


def points_of(folder: Path) -> list[Point]:
    return Points(tiny(), tiling()).of(read_measurements(folder))


def outcomes_of(points: list[Point]) -> dict[Any, Outcome]:
    """An outcome for every simulation, as if each time were 10 us."""
    names = ["time", "gemm", "collective", "sum", "makespan", "tile", "main_loop", "stores", "drift"]
    names += [f"stores_of_quarter_{number}" for number in (1, 2, 3, 4)] + list("0123")
    return {one: Outcome(dict.fromkeys(names, 10.0)) for one in simulations_of(points)}


def table(folder: Path, points: list[Point], outcomes: dict[Any, Outcome]) -> list[dict[str, str]]:
    text = validation_csv(folder, compared(points, outcomes)).decode()
    return list(csv.DictReader(io.StringIO(text)))


TIMELINES = ("tile_timelines", "scatter_timelines")  # one line of the table for all tiles of a kernel


def rows_missing_in(folder: Path, found: list[dict[str, str]]) -> list[str]:
    """Rows of *folder* that no line of a table represents."""
    named = {(row["file"], int(row["line"])) for row in found}
    missing, measured = [], read_measurements(folder)
    for row in measured.rows:
        file = Path(row.file).relative_to(folder).as_posix()
        if row.kind not in TIMELINES and (file, row.line) not in named:
            missing.append(f"{file}:{row.line}")
    for kind in TIMELINES:
        n_tiles = len(measured.of_kind(kind))
        n_stood_for = {(row["file"], row["line"]): int(row["rows"]) for row in found if row["kind"] == kind}
        missing += ["tiles"] if sum(n_stood_for.values()) != n_tiles else []
    return missing


def test_every_row_is_in_the_table(folder: Path) -> None:
    points = points_of(folder)
    found = table(folder, points, outcomes_of(points))
    assert rows_missing_in(folder, found) == []
    assert {row["kind"] for row in found} >= set(ROWS)


def test_the_shipped_measurements_are_all_compared_or_accounted_for(repository: Path) -> None:
    shipped = repository / "validation" / "h200"
    points = Points(tiny(), tiling()).of(of_h200s())
    assert rows_missing_in(shipped, table(shipped, points, outcomes_of(points))) == []


def test_kinds_and_what_they_are_compared_with(folder: Path) -> None:
    points = points_of(folder)
    rings = [point for point in points if point.row.kind == "collectives"]
    assert [point.kind for point in rings].count("channel_limited_collectives") == 1
    limited = next(point for point in rings if point.kind == "channel_limited_collectives")
    assert limited.simulations[0].n_channels == 1  # type: ignore[union-attr]
    by_protocol = {point.row["nccl_proto"]: point for point in rings if point.row["bytes"] == 4096}
    held, free = (by_protocol[name].simulations[0] for name in ("Simple", "auto"))
    assert held.machine.gpu.collective_kernel.low_latency is None  # type: ignore[union-attr]
    assert free.machine == tiny()  # type: ignore[union-attr]
    assert not by_protocol["LL128"].terms
    assert "LL128" in by_protocol["LL128"].reason
    split = [point.simulations for point in points if point.kind == "gemm_sm_split"]
    assert [one[0].n_compute_units if one else "none" for one in split] == [None, 2, "none"]  # type: ignore[union-attr]
    tiled = [point for point in points if point.row.values.get("kernel") == "tiled" and point.kind == "gemm"]
    assert [bool(point.terms) for point in tiled] == [False]


FACTS = {"device": "NVIDIA H200", "driver": "1", "cuda": "13", "date": "2026-11-22"}


def ring_times(tmp_path: Path, host_us: dict[str, float]) -> dict[str, tuple[float | None, str]]:
    """Simulated times (10 us each on the device) and remarks: a folder, and one inside it whose times hold launches."""
    tables = {"collectives": [collective("all_gather", 16384, 20.0)], "gemm": [ROWS["gemm"][0]]}
    write_folder(tmp_path, tables)
    facts = FACTS | {"host_us": host_us}
    (write_folder(tmp_path / "inner", tables) / "provenance.json").write_text(json.dumps(facts))
    points = points_of(tmp_path)
    return {
        f"{Path(one.point.row.file).relative_to(tmp_path)}": (one.simulated, one.reason)
        for one in compared(points, outcomes_of(points))
    }


def test_launches_of_the_host_are_in_the_times_of_a_folder_that_says_so(tmp_path: Path) -> None:
    """Only the kind that the folder names, only that folder, and only where the device is done sooner."""
    found = ring_times(tmp_path, {"collectives": 18.5})
    remark = "the device is done after 10.0 us, the host launches one every 18.5 us"
    assert found == {
        "collectives.csv": (10.0, ""),
        "gemm.csv": (10.0, ""),
        "inner/collectives.csv": (18.5, remark),
        "inner/gemm.csv": (10.0, ""),
    }


def test_nothing_is_assumed_of_files_that_nobody_describes(tmp_path: Path) -> None:
    """Canary: where a provenance says that launches are in the times, they are."""
    rows = {"collectives": [collective("all_gather", 16384, 20.0)], "contention": [ROWS["contention"][0]]}
    folder = write_folder(tmp_path / "x", rows)
    facts = json.loads((folder / "provenance.json").read_text())
    described = facts | {"host_us": {"collectives": 18.4}, "gemm_loop_share": 0.63}
    (folder / "provenance.json").write_text(json.dumps(described))
    with_method = read_measurements(folder)
    (folder / "provenance.json").unlink()
    bare = read_measurements(folder)
    for found, host_us, share in ((with_method, 18.4, 0.63), (bare, 0.0, None)):
        [ring] = found.of_kind("collectives")
        [beside] = found.of_kind("contention")
        assert (found.host_us(ring), found.host_us(beside), found.gemm_loop_share(beside)) == (host_us, 0.0, share)
    assert with_method.assumed == ()
    [sentence] = bare.assumed
    assert "without provenance.json: times are compared as they are" in sentence


def test_reduce_scatters_beside_gemms_say_if_the_power_limit_may_have_acted(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "x", {"contention": [ROWS["contention"][0]]})
    facts = json.loads((folder / "provenance.json").read_text())

    def with_remark(**more: int) -> set[str]:
        (folder / "provenance.json").write_text(json.dumps(facts | more))
        points = Points(tiny(), tiling()).of(read_measurements(folder))
        return {point.quantity for point in points if "power limit" in point.reason}

    assert with_remark(rest_ms=60) == set()
    assert with_remark() == {"rs_with_gemm_us", "rs_slowdown"}


def test_an_operator_is_its_parts_in_a_row(tmp_path: Path) -> None:
    lines = ["op,m,n,k,tp,time_us", "gemm-rs,128,256,64,2,9", "ag-gemm,128,256,64,2,9", "gemm-ar,128,256,64,2,9",
             "gemm,128,256,64,2,5", "all_reduce,128,256,0,2,5"]  # fmt: skip
    (tmp_path / "mine.csv").write_text("\n".join(lines) + "\n")
    points = Points(tiny(), tiling()).of(read_measurements(tmp_path / "mine.csv"))
    assert [point.kind for point in points] == ["operators"] * 3 + ["gemm", "collectives"]
    parts = [[term.simulation for term in point.terms] for point in points]
    gemm, a, c = parts[0][0], 2 * 128 * 64, 2 * 128 * 256
    assert parts[3] == [gemm]
    rings = [(0, "reduce-scatter", c), (1, "all-gather", a), (2, "all-reduce", c), (4, "all-reduce", c)]
    for i, op, size in rings:
        [ring] = [one for one in parts[i] if isinstance(one, CollectiveAlone)]
        assert (ring.op, ring.size, ring.gpus) == (op, size, 2)
    assert [parts[0][0], parts[1][1], parts[2][0]] == [gemm] * 3


def test_an_all_reduce_of_a_library_is_its_kernel(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(
        "collective,gpus,bytes,algorithm,time_us\nall_reduce,2,8192,vllm,9\nall_reduce,2,8192,,9\n"
        "all_reduce,2,8192,trtllm,9\nreduce_scatter,2,8192,vllm,9\nall_reduce,2,8192,mscclpp,9\n"
        "all_reduce,8,1048576,trtllm,9\n"
    )
    points = Points(tiny(), tiling()).of(read_measurements(tmp_path / "mine.csv"))
    simulations = [[term.simulation for term in point.terms] for point in points]
    assert [one.algorithm for [one] in simulations[:3]] == ["vllm", "nccl", "trtllm"]  # type: ignore[attr-defined]
    assert simulations[3:] == [[], [], []]
    assert "mscclpp" in points[4].reason
    assert "two-shot" in points[5].reason


def test_send_receive_and_broadcast_are_simulated(tmp_path: Path) -> None:
    """Each takes as long as its bytes over a link at least; GPU 0 of a broadcast does not what the others do."""
    path = tmp_path / "mine.csv"
    path.write_text("collective,gpus,bytes,time_us\nsend_recv,2,65536,9\nbroadcast,2,65536,9\n")
    machine = machine_of("t3-tiny", ("machine.link.topology=switch", "machine.link.ingress_buffer=512 KiB"))
    simulations = simulations_of(Points(machine, tiling()).of(read_measurements(path)))
    assert [one.run.mode for one in simulations] == ["mirrored", "explicit"]
    times = [one.outcome(one.result(PhaseStore())).times["time"] for one in simulations]
    least = 65536e6 / machine.link.bandwidth
    assert all(least < time < 20 * least for time in times), (least, times)


def strategy_points(tmp_path: Path, *lines: str) -> list[Point]:
    header = "op,m,n,k,tp,strategy,parameters,source,time_us"
    (tmp_path / "mine.csv").write_text("\n".join([header, *lines]) + "\n")
    return Points(tiny(), tiling()).of(read_measurements(tmp_path / "mine.csv"))


def test_an_operator_of_a_strategy_is_that_strategy(tmp_path: Path) -> None:
    shape = "128,256,64,2"
    naive, alone, again = strategy_points(
        tmp_path, f"gemm-rs,{shape},flux-push,store_bytes=64,a,9", f"gemm-rs,{shape},sequential,,a,9",
        f"gemm-rs,{shape},,,b,9",
    )  # fmt: skip
    [one] = naive.simulations
    assert (one.run.strategy, one.run.strategy_params) == ("flux-push", {"store_bytes": 64})
    assert [phase.role for phase in one.result(PhaseStore())] == ["fused"]  # and no all-gather of the output
    assert alone.terms == again.terms
    assert len(alone.terms) == 2


def test_a_host_that_takes_longer_than_the_gpus_decides_a_loop(tmp_path: Path) -> None:
    """Of a row that says what a call takes it; rows that do not say so are those of the device."""
    rows = [f"gemm-rs,{128 * i},256,64,2,flux-push,{host},9" for i, host in enumerate((500, 1, ""), 1)]
    (tmp_path / "mine.csv").write_text("\n".join(["op,m,n,k,tp,strategy,host_us,time_us", *rows]) + "\n")
    points = Points(tiny(), tiling()).of(read_measurements(tmp_path / "mine.csv"))
    outcomes = {one: Outcome({"time": 100.0}) for one in simulations_of(points)}
    found = [(one.simulated, one.reason) for one in compared(points, outcomes)]
    assert [simulated for simulated, _ in found] == [500.0, 100.0, 100.0]
    assert [reason for _, reason in found] == [
        "the device is done after 100.0 us, the host launches one every 500.0 us",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ("gemm-rs,128,256,64,2,multicast,,a,9", "unknown overlap strategy `multicast`"),
        ("ag-gemm,128,256,64,2,flux-push,,a,9", "`flux-push` is of gemm-rs"),
        ("gemm-rs,128,256,64,2,flux-push,store_bytes=no,a,9", "store_bytes: 'no' is not"),
        ("gemm-rs,128,256,64,2,flux-push,speed=2,a,9", "unknown parameter 'speed'"),
    ],
)
def test_a_strategy_that_is_not_simulated_has_a_reason(tmp_path: Path, cells: str, reason: str) -> None:
    [point] = strategy_points(tmp_path, cells)
    assert point.terms == ()
    assert reason in point.reason


def test_equal_simulations_are_one(folder: Path) -> None:
    """The machine's own number of channels, a protocol that it takes anyway, and all units are no other simulation."""
    rows = [collective("reduce_scatter", 16384, 6.0, channels, protocol) for channels, protocol in
            (("auto", "auto"), ("2", "auto"), ("auto", "Simple"))]  # fmt: skip
    write_folder(folder.parent / "same", {"collectives": rows})
    assert len(simulations_of(points_of(folder.parent / "same"))) == 1
    found = simulations_of(points_of(folder))
    assert len(found) == len(set(found))


def test_kernels_beside_each_other_start_from_simulations_that_are_points_too(folder: Path) -> None:
    points = points_of(folder)
    [both] = [one for one in simulations_of(points) if isinstance(one, SideBySide)]
    assert {both.gemm, both.reduce_scatter} < set(simulations_of(points))


@pytest.fixture(scope="module")
def points() -> list[Point]:
    """The points of the shipped measurements with a library of kernels."""
    return Points(machine_of("h200", ()), load_kernels("cublas-hopper")).of(of_h200s())


@pytest.fixture(scope="module")
def points_of_one_kernel() -> list[Point]:
    """The same with one kernel for all GEMMs."""
    return Points(machine_of("h200", ()), load_tiling("gemm-128x256")).of(of_h200s())


def test_loops_of_the_given_files_overlap_in_part(points: list[Point]) -> None:
    """Loops of ours run beside each other throughout; those of the given files do not, as their provenance says."""
    shares: dict[bool, set[float | None]] = {True: set(), False: set()}
    for point in points:
        for both in point.simulations:
            if isinstance(both, SideBySide):
                is_given = Path(point.row.file).parent.name == "h200"
                shares[is_given].add(both.gemm_share)
                gpu = both.gemm.machine.gpu
                assert (gpu.operating_point, gpu.clock_of_matrices) == ("boost", 1_575_000_000)
    assert shares == {True: {0.63}, False: {None}}


class TestKernelsOfALibrary:
    """A library chooses for the GEMM and the whole device, whatever else a measurement was made with."""

    def kernels_of(self, points: list[Point], kind: str) -> dict[tuple[int, ...], set[tuple[int, int]]]:
        """Tiles of the simulated GEMMs of a kind, by their rows and columns."""
        found: dict[tuple[int, ...], set[tuple[int, int]]] = {}
        for point in points:
            for simulation in point.simulations if point.kind == kind else ():
                if isinstance(simulation, GemmAlone):
                    tile = simulation.tiling.workgroup_tile
                    found.setdefault((simulation.gemm.m, simulation.gemm.n), set()).add(tile)
        return found

    @pytest.mark.parametrize("kind", ["gemm", "gemm_gaps"])
    def test_each_gemm_has_the_kernel_of_its_shape(self, points: list[Point], kind: str) -> None:
        found = self.kernels_of(points, kind)
        assert found[512, 512] == {(32, 64)}
        assert found[8192, 4256] == {(160, 256)}
        assert found[16384, 3072] == {(128, 256)}

    def test_recorded_tiles_keep_the_tile_that_was_recorded(self, points: list[Point]) -> None:
        recorded = [one for point in points if point.kind == "tile_timelines" for one in point.simulations]
        tiles = {one.gemm.tiling.workgroup_tile for one in recorded if isinstance(one, RecordedTiles)}
        assert tiles == {(128, 256)}


class TestErrors:
    row = Measurement("launch", {"pattern": "host", "time_us": 1.0}, "x.csv", 2)

    def simulations(self) -> tuple[GemmAlone, CollectiveAlone]:
        from t3sim.config.experiment import GemmShape

        alone = GemmAlone(tiny(), tiling(), GemmShape(m=64, n=64, k=64))
        return alone, CollectiveAlone(tiny(), tiling(), "all-gather", 4096, 2)

    @given(st.floats(0.1, 1e4), st.floats(0.1, 1e4), st.floats(0.1, 1e4))
    @settings(max_examples=25)
    def test_of_a_sum_of_times_is_relative_to_the_measurement(self, measured: float, one: float, two: float) -> None:
        first, second = self.simulations()
        point = Point("sequential", "q", "us", self.row, measured, (Term(first), Term(second)))
        outcomes = {first: Outcome({"time": one}), second: Outcome({"time": two})}
        [found] = compared([point], outcomes)
        assert found.simulated == one + two
        assert found.error == pytest.approx((one + two) / measured - 1, rel=1e-9, abs=1e-9)

    def test_of_a_slowdown_is_the_difference(self) -> None:
        alone, ring = self.simulations()
        both = SideBySide(alone, ring)
        point = Point("contention", "gemm_slowdown", "ratio", self.row, 1.25, (Term(both, "gemm"),), Term(alone))
        [found] = compared([point], {alone: Outcome({"time": 40.0}), both: Outcome({"gemm": 46.0})})
        assert found.simulated == pytest.approx(1.15)
        assert found.error == pytest.approx(-0.10)

    def test_failed_points_are_kept_with_their_reason(self) -> None:
        alone, ring = self.simulations()
        points = [Point("gemm", "q", "us", self.row, 2.0, (Term(one),)) for one in (alone, ring)]
        failed, fine = compared(points, {alone: Outcome(failed="deadlock"), ring: Outcome({"time": 3.0})})
        assert (failed.status, failed.reason, failed.simulated, failed.error) == ("failed", "deadlock", None, None)
        assert (fine.status, fine.error) == ("simulated", 0.5)


def test_a_list_of_rows_says_what_was_used_for_calibration(folder: Path) -> None:
    listed = folder.parent / "used.csv"
    listed.write_text("file,line\ncollectives.csv,2\ncontention.csv,2\n")
    used = read_calibration(listed, read_measurements(folder))
    points = points_of(folder)
    found = compared(points, outcomes_of(points), used)
    assert {(one.point.kind, one.point.row.line) for one in found if one.is_used} == {
        ("collectives", 2), ("contention", 2)
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("file,line\ncollectives.csv,99\n", r"used\.csv:2: no measurement at .*collectives\.csv:99"),
        ("file,line\ncollectives.csv\n", r"used\.csv:2: no measurement at"),
        ("kind,line\ncollectives,2\n", r"used\.csv:1: the columns must be file, line"),
    ],
)
def test_a_list_for_other_measurements_is_refused(folder: Path, text: str, message: str) -> None:
    listed = folder.parent / "used.csv"
    listed.write_text(text)
    with pytest.raises(InputDataError, match=message):
        read_calibration(listed, read_measurements(folder))


def test_scattered_tiles_are_simulated_as_they_were_recorded(points_of_one_kernel: list[Point]) -> None:
    """One simulation for each record; each fused row has one for each order, at the clock of GEMMs without pause."""
    found = {kind: set[Any]() for kind in ("tile_timelines", "fused_scatter")}
    for point in points_of_one_kernel:
        if point.kind in found:
            found[point.kind] |= {one for one in point.simulations if isinstance(one, Scatter)}
    timelines, rows = found.values()
    assert sorted((one.gemm.gemm.k, one.order) for one in timelines) == [(384, "next"), (2128, "next")]
    orders = [(k, order) for k in (384, 528, 1536, 2128) for order in ("naive", "next")]
    assert sorted((one.gemm.gemm.k, one.order) for one in rows) == orders
    assert {one.gemm.machine.gpu.operating_point for one in timelines} == {"boost"}
    assert {one.gemm.machine.gpu.operating_point for one in rows} == {"sustained"}


ENGINES = "{number: 1, startup: 2 us, bandwidth: 4 GB/s, max_outstanding_lines: 64}"


def test_copies_by_engines_are_simulated_where_there_are_engines(tmp_path: Path) -> None:
    """Startup, launch, and bytes at the rate of the engine; stores of SMs are no copies of an engine."""
    rows = [
        {"pattern": pattern, "bytes": 1 << 18, "time_us": 70.0, "gbps_per_direction": 3.745}
        for pattern in ("bidi", "store by 2 workgroups of 1024 threads")
    ]
    measurements = read_measurements(write_folder(tmp_path / "copies", {"peer_copy": rows}))
    without = Points(tiny(), tiling()).of(measurements)
    assert [point.reason for point in without] == [
        "the machine has no copy engines", "no kernel of loads or stores alone"
    ]  # fmt: skip
    machine = tiny(f"machine.gpu.copy_engines={ENGINES}")
    copy, store = Points(machine, tiling()).of(measurements)
    assert not store.terms
    (simulation,) = copy.simulations
    least_us = 2 + machine.gpu.kernel_launch / 1e6 + (1 << 18) / 4e3
    assert least_us < simulation.outcome(simulation.result(PhaseStore())).times["time"] < least_us + 5


# --- transfers of several GPUs, GEMMs in green contexts ------------------------------------------------


def test_two_senders_share_the_port_of_one_receiver(folder: Path) -> None:
    """Both lanes take as long as both copies through one link, and a lane that a pattern has not is said."""
    machine = tiny(
        "machine.gpu.copy_engines={number: 2, startup: 1 us, bandwidth: 100 GB/s, max_outstanding_lines: 999}",
        "machine.link.topology=switch",
        "machine.link.ingress_buffer=64 KiB",
    )
    points = [point for point in Points(machine, tiling()).of(read_measurements(folder)) if point.kind == "transfers"]
    both, lane, *rest = points
    stored, no_lane, pulled = rest
    assert [point.reason for point in rest] == [
        "", "no such lane of a pattern of that many GPUs", "no bulk stores alone, and engines push only",
    ]  # fmt: skip
    assert (stored.row["means"], no_lane.row["lane"], pulled.row["pattern"]) == ("store", "7", "pulls_two_peers")
    assert both.simulations == lane.simulations
    [simulation] = both.simulations
    times = simulation.outcome(simulation.result(PhaseStore())).times
    through_link_us = 2 * (1 << 16) / machine.link.bandwidth * 1e6
    assert through_link_us < times[both.terms[0].name] < through_link_us + 10
    assert 0.5 * times["time"] < times["0"] <= times["1"] == pytest.approx(times["time"], rel=0.2)
    few = tiny("machine.gpu.copy_engines={number: 1, startup: 1 us, bandwidth: 4 GB/s, max_outstanding_lines: 64}")
    ways = write_folder(folder / "both", {"transfers": [{**ROWS["transfers"][0], "ways": "both", "transfers": 4,
                                                         "gbps": 4 * (1 << 16) / 40e3}]})  # fmt: skip
    [point] = Points(few, tiling()).of(read_measurements(ways))
    assert point.reason == "2 lanes of one GPU; the machine has 1 copy engines"


def test_a_gemm_in_a_green_context_is_simulated_alone(folder: Path) -> None:
    found = [point for point in points_of(folder) if point.kind == "contention_sm_split"]
    fewer, whole = ([point for point in found if point.row["sms"] == sms] for sms in (2, 4))
    assert [bool(point.terms) for point in fewer] == [True, True, False, False]
    assert fewer[0].simulations[0].n_compute_units == 2  # type: ignore[union-attr]
    assert [point.quantity for point in whole] == [
        "gemm_alone_us", "rs_alone_us", "gemm_with_rs_us", "gemm_slowdown", "rs_with_gemm_us", "rs_slowdown"
    ]  # fmt: skip
    assert all(point.terms for point in whole)


# --- few compute units beside others that stream -------------------------------------------------------


def memory_contention(folder: Path) -> list[Point]:
    return [point for point in points_of(folder) if point.kind == "memory_contention"]


def test_a_slowdown_is_over_the_row_beside_nothing(folder: Path) -> None:
    found = memory_contention(folder)
    assert [(point.quantity, round(point.measured, 2), bool(point.terms)) for point in found] == [
        ("time_us", 6, True), ("time_us", 9, True), ("slowdown", 1.5, True), ("time_us", 5, True),
        ("time_us", 7, True), ("slowdown", 1.4, True), ("time_us", 5, False),
    ]  # fmt: skip
    assert found[-1].reason == "the machine has 4 compute units"
    alone, _, slowdown, *_ = found
    assert slowdown.below is not None
    assert slowdown.below.simulation == alone.simulations[0]


def test_compute_units_that_stream_slow_loads_and_copies_down(folder: Path) -> None:
    """Loads take their latency each, copies their path; both are slower beside others, which go on to the end."""
    machine, found = tiny(), memory_contention(folder)
    times = {point.row.line: one.outcome(one.result(PhaseStore())) for point in found for one in point.simulations[:1]}
    assert not any(outcome.failed for outcome in times.values())
    load, beside_writes, copy, beside_copies = (times[line].times["time"] for line in (2, 3, 4, 5))
    l2, unit = machine.gpu.l2, machine.gpu.compute_unit
    latency_us = (l2.hit_latency + l2.miss_latency) / machine.gpu.compute_clock * 1e6
    assert 1 < load / (2048 / l2.line * latency_us) < 1.5
    path_us = (
        65536 * (1 / unit.l2_bytes_per_cycle + 1 / unit.l2_store_bytes_per_cycle) / machine.gpu.compute_clock * 1e6
    )
    assert copy > path_us
    assert 1.05 < beside_writes / load < 4
    assert 1.05 < beside_copies / copy < 4


# --- an all-gather and its GEMM in pieces -------------------------------------------------------------

ENGINE = "machine.gpu.copy_engines={number: 1, startup: 1 us, bandwidth: 4 GB/s, max_outstanding_lines: 64}"


def async_tp_points(tmp_path: Path, *overrides: str, host_us: float | None = None) -> dict[str, Point]:
    row = {"model": "-", "sublayer": "-", "tp": 2, "gpus": 2, "m": 128, "n": 128, "k": 128}
    times = {"mm_rs_us": 300.0, "ag_mm_us": 200.0, "ag_then_mm_us": 250.0}
    folder = write_folder(tmp_path / "measured", {"async_tp": [{**row, **times}]})
    if host_us is not None:
        path = folder / "provenance.json"
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, "host_us": {"async_tp": host_us}}))
    found = Points(tiny(*overrides), tiling()).of(read_measurements(folder))
    return {point.quantity: point for point in found}


def test_async_tp_is_simulated_in_pieces_and_one_after_the_other(tmp_path: Path) -> None:
    points = async_tp_points(tmp_path, ENGINE)
    pieces = points["ag_mm_us"].terms[0].simulation
    assert (pieces.run.strategy, pieces.run.workload.operator) == ("async-tp-ag", "ag-gemm")
    assert [part.role for part in pieces.result(PhaseStore())] == ["fused"]
    assert 0 < pieces.outcome(pieces.result(PhaseStore())).times["time"] < 200
    gather, gemm = (term.simulation for term in points["ag_then_mm_us"].terms)
    assert (gather.op, gather.size) == ("all-gather", 2 * 128 * 128)
    assert isinstance(gemm, GemmAlone)
    assert points["mm_rs_us"].terms[0].simulation.run.strategy == "async-tp"


def test_the_host_decides_where_the_gpus_have_less_to_do(tmp_path: Path) -> None:
    """Of the fused operators only."""
    points = async_tp_points(tmp_path, ENGINE, host_us=180.0)
    assert (points["ag_mm_us"].host_us, points["ag_then_mm_us"].host_us) == (180.0, 0.0)
    [found] = compared([points["ag_mm_us"]], outcomes_of([points["ag_mm_us"]]))
    assert (found.simulated, found.error) == (180.0, pytest.approx(-0.1))


@pytest.mark.parametrize(("stated", "said"), [("", "graph, assumed"), ("host=eager", "eager, as the row states")])
def test_a_row_of_a_strategy_that_depends_on_the_host_says_which_one(stated: str, said: str, tmp_path: Path) -> None:
    """Canary: a row of `sequential` says nothing of a host."""
    rows = ["op,m,n,k,tp,strategy,parameters,time_us"]
    rows += [f"ag-gemm,128,128,128,2,{one},200" for one in (f"async-tp-ag,{stated}", "sequential,")]
    path = tmp_path / "operators.csv"
    path.write_text("\n".join(rows) + "\n")
    machine = tiny(ENGINE, "machine.gpu.host={eager_call: 1 us, eager_issue: 1 us}")
    pieces, whole = Points(machine, tiling()).of(read_measurements(path))
    assert said in pieces.reason
    assert "host" not in whole.reason
