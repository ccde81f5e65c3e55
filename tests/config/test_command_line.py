"""The command line around configurations: short messages, exit codes, no traceback."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from t3sim.cli import COMMANDS, main
from t3sim.cli._errors import run_reporting_errors
from t3sim.experiment.planning.plan import load_experiment
from t3sim.gpu.ticks import TickBase
from t3sim.system.layer import other_ticks

GOOD = "name: e\nmachine: t3-150\nworkload: {model: T-NLG, sublayer: FC-2, tp: 8}\nstrategy: t3\n"


@pytest.fixture
def t3sim(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD)
    return lambda *arguments: CliRunner().invoke(main, list(arguments))


def test_help_lists_the_commands_without_importing_them():
    code = (
        "import sys; from t3sim.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print([m for m in ('numpy', 'numba', 'pydantic', 'yaml', 'pandas', 'rich') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.endswith("[]\n")
    for name, text in COMMANDS.items():
        assert name in output
        assert text in output


@pytest.mark.parametrize("arguments", [["list"], ["config", "check", "good.yaml"]])
def test_what_simulates_nothing_does_not_import_numba(arguments, tmp_path):
    (tmp_path / "good.yaml").write_text(GOOD)
    code = (
        f"import sys; from t3sim.cli import main\ntry: main({arguments})\nexcept SystemExit as end: print(end.code)\n"
        "print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["0", "False"]


def test_show_prints_value_unit_origin_and_source(t3sim):
    result = t3sim("config", "show", "good.yaml", "-s", "machine.link.bandwidth=100 GB/s")
    rows = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "100 GB/s" in rows["machine.link.bandwidth"]
    assert rows["machine.link.bandwidth"].endswith("user      -s machine.link.bandwidth=100 GB/s")
    assert "16 MiB" in rows["machine.gpu.l2.capacity"]
    assert "paper     T3 Table 1 (configs/gpu/cu80.yaml:" in rows["machine.gpu.l2.capacity"]
    assert "160 cycles" in rows["machine.gpu.l2.hit_latency"]
    assert "1.4 GHz" in rows["machine.gpu.compute_clock"]
    assert "round_robin" in rows["arbitration.policy"]


def test_show_prints_values_as_yaml_has_them(t3sim):
    lines = t3sim("config", "show", "good.yaml").stdout.splitlines()
    shown = {line.split()[0]: line.split()[1] for line in lines if line.startswith(("machine", "tiling", "staggered"))}
    assert shown["machine.gpu.operating_points"] == "null"
    assert (shown["staggered"], shown["tiling.workgroup_tile"]) == ("true", "[256,")


def test_show_as_json_and_schema(t3sim):
    assert '"bandwidth": 150000000000' in t3sim("config", "show", "good.yaml", "--json").stdout
    assert t3sim("config", "schema").exit_code == 0


def test_unknown_commands_and_options(t3sim):
    assert t3sim("list").exit_code == 0  # its module has the name of a built-in function
    assert "advise" in t3sim("--help").output
    result = t3sim("confg")
    assert result.exit_code == 2, result.output
    assert "unknown command `confg`; did you mean `config`?" in result.stderr
    assert t3sim("config", "check").exit_code == 2
    assert t3sim("config", "show", "good.yaml", "--point", "2").exit_code == 2


def test_debug_shows_the_traceback_anywhere(t3sim):
    assert "Traceback" not in t3sim("config", "check", "none.yaml").output
    assert "Traceback" in t3sim("config", "check", "none.yaml", "--debug").output
    assert "Traceback" in t3sim("--debug", "config", "check", "none.yaml").output


def test_an_interrupted_run_says_that_it_goes_on(capsys):
    """Canary: a command that keeps nothing does not."""

    def interrupted(_arguments):
        raise KeyboardInterrupt

    for command, message in (("run", "interrupted; run the same command again"), ("plot", "interrupted\n")):
        assert run_reporting_errors(interrupted, [command]) == 130
        assert capsys.readouterr().err.startswith(f"t3sim: {message}")


def test_an_axis_is_shown_as_it_is_written(t3sim, tmp_path):
    axis = "strategy: [t3, {name: cu-split, communication_units: [1, 2]}]"
    text = "name: x\nmachine: t3-tiny\ntiling: gemm-64x64\nworkload: {gemm: {m: 256, n: 256, k: 256}, tp: 4}\n"
    (tmp_path / "x.yaml").write_text(f"{text}sweep: {{grid: {{{axis.replace('[1, 2]', '1')}}}}}\n")
    shown = t3sim("config", "check", str(tmp_path / "x.yaml")).output
    assert "axis        strategy: t3, {name: cu-split, communication_units: 1}" in shown
    assert max(map(len, shown.splitlines()[1:])) <= 80


def test_of_a_long_axis_the_first_values_and_machines_are_shown(t3sim, tmp_path):
    """Canary: with 16 values all of them are, and a machine that has another name for each is shown six times."""
    text = "name: x\nmachine: t3-tiny\ntiling: gemm-64x64\nstrategy: t3\nworkload: {gemm: {m: 256, n: 256, k: 256}, "
    text += "tp: 4}\n"
    for n, last in ((16, "16 GB/s"), (40, "6 GB/s, ..., 40 GB/s (40 values)")):
        rates = ", ".join(f"{i + 1} GB/s" for i in range(n))
        (tmp_path / "x.yaml").write_text(f"{text}sweep: {{grid: {{machine.link.bandwidth: [{rates}]}}}}\n")
        lines = t3sim("config", "check", str(tmp_path / "x.yaml")).output.splitlines()
        shown = " ".join(" ".join(lines).split())
        assert f"{last} machine " in shown
        assert sum(line.startswith("machine ") for line in lines) == 6
        assert f"and {n - 6} more" in shown


def test_a_closed_pipe_is_quiet():
    command = f"{sys.executable} -c 'from t3sim.cli import main; main()' config schema | head -c 1"
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (result.stdout, result.stderr) == ("{", "")


@pytest.mark.parametrize("launch", ["0 ns", "3600 ns"])
def test_operators_of_a_layer_are_shown_with_the_time_that_results_have(t3sim, launch):
    given = "machine: {preset: t3-150, gpu: {kernel_launch: " + launch + "}}"
    text = GOOD.replace("machine: t3-150", given).replace("sublayer: FC-2", "layer: prompt")
    Path("layer.yaml").write_text(text)
    [run] = load_experiment("layer.yaml", []).points
    ticks = TickBase.of(run.machine)
    us = f"{ticks.to_us(other_ticks(run.workload, run.machine, ticks)):.1f}"
    output = t3sim("workload", "show", "layer.yaml").stdout
    launches = "" if launch == "0 ns" else ", with 3.6 us to launch each"
    assert f"on 8 GPUs {run.machine.name}: {us} us{launches}\n" in output


def test_the_local_size_of_a_swept_gemm_is_mentioned(t3sim):
    swept = ["-s", "sweep.grid.workload.tp=[4, 8]"]
    bare = ["-s", "workload={gemm: {m: 8192, n: 4096, k: 2048}, tp: 8}"]
    said = "note {} of a bare GEMM is per GPU"
    gathers = ["-s", "workload.operator=ag-gemm", "-s", "strategy=sequential"]
    for size, more in (("k", []), ("n", gathers)):
        found = " ".join(t3sim("config", "check", "good.yaml", *bare, *swept, *more).stdout.split())
        assert said.format(size) in found
    for arguments in (swept, bare, [*bare, *swept, "-s", "sweep.grid.workload.gemm.k=[2048, 1024]"]):
        assert "bare GEMM" not in t3sim("config", "check", "good.yaml", *arguments).stdout
