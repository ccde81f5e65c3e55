"""What the documents show runs, and its numbers are those of the simulator."""

from __future__ import annotations

import csv
import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from t3lab.report.validation import read_validation
from t3sim.cli import main
from t3sim.errors import home_of, is_of_a_user
from t3sim.experiment.planning.plan import load_experiment
from t3sim.program.parts import reduce_scatter_part
from t3sim.strategies import in_order
from tests.analysis.folders import SEQUENTIAL, T3, write_folder
from tests.analysis.test_validation import POINTS, write_tables
from tests.conftest import REPOSITORY
from tests.harness.sublayers import ObservedParts

DOCUMENTS = [path for path in REPOSITORY.rglob("*.md") if not {".venv", "results"} & set(path.parts)]
SHOWN = [  # whose commands are tried
    REPOSITORY / "README.md",
    *sorted(REPOSITORY.glob("docs/*.md")),
    *sorted(REPOSITORY.glob("docs/users/*.md")),
    *sorted(REPOSITORY.glob("docs/developers/*.md")),
    REPOSITORY / "validation" / "CALIBRATION.md",
]
USERS = REPOSITORY / "docs" / "users"
DEMO = REPOSITORY / "experiments" / "t3-tnlg-fc2" / "experiment.yaml"
EXAMPLES = sorted((REPOSITORY / "docs" / "examples").glob("*/experiment.yaml"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[\w-]+)?\)")
LONG_COMMANDS = ("advise", "calibrate", "validate")  # minutes: of these only the options are checked
REFRESH = "the model has changed: run docs/refresh.py and read the prose around the tables again"


def blocks(path: Path, language: str) -> list[str]:
    """Return the fenced blocks of *language* in a document."""
    return [text for name, text in FENCE.findall(path.read_text(encoding="utf-8")) if name == language]


def commands(path: Path) -> list[list[str]]:
    """Return the arguments of the `t3sim` commands in the shell blocks of a document."""
    lines = "\n".join(blocks(path, "sh")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("t3sim ")]


def generated_table(path: Path, name: str) -> dict[str, list[str]]:
    """Return the rows of a generated table by their first cell."""
    text = path.read_text(encoding="utf-8")
    body = text.split(f"<!-- begin {name} -->\n")[1].split(f"\n<!-- end {name} -->")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]
    return {row[0].strip("`"): row[1:] for row in [rows[0], *rows[2:]]}


def t3sim(*commands: list[str]) -> None:
    """Run commands, one after another, in a process of their own, so that plugins stay there."""
    code = (
        "import json, sys\nfrom t3sim.cli import main\n"
        "for arguments in json.loads(sys.argv[1]):\n    main(arguments, standalone_mode=False)"
    )
    command = [sys.executable, "-c", code, json.dumps(commands)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def rows_of(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a results folder."""
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def dead_links(path: Path) -> list[str]:
    """Return the links of a document that lead nowhere."""
    targets = [target for target in LINK.findall(path.read_text(encoding="utf-8")) if "://" not in target]
    return [f"{path.relative_to(REPOSITORY)}: {target}" for target in targets if not (path.parent / target).exists()]


def test_links_lead_somewhere() -> None:
    assert len(DOCUMENTS) > 50
    assert [link for path in DOCUMENTS for link in dead_links(path)] == []


@pytest.mark.parametrize("path", SHOWN, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_commands_are_accepted(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `run` is only checked here; other commands run beside the results of one, in the order of the document."""
    write_folder(tmp_path / "results" / "t3-sublayers", [SEQUENTIAL, T3], figures=["layer"])
    (tmp_path / "validation").symlink_to(REPOSITORY / "validation")
    monkeypatch.setitem(sys.modules, "cupy", None)  # nothing is measured here, on no machine
    refused = []
    for arguments in commands(path):
        if arguments[0] in LONG_COMMANDS:
            main.get_command(None, arguments[0]).make_context(arguments[0], arguments[1:])
            continue
        if "EXPERIMENT" in arguments or arguments[0] == "plot":
            continue
        if arguments[0] == "run":
            of_a_run = [i for i, word in enumerate(arguments) if word in ("-o", "--scheduler")]
            kept = [word for i, word in enumerate(arguments) if not any(i in (o, o + 1) for o in of_a_run)]
            monkeypatch.chdir(REPOSITORY)
            arguments = ["config", "check", *kept[1:]]
        else:
            monkeypatch.chdir(tmp_path)
        result = CliRunner().invoke(main, arguments)
        is_measuring = arguments[0] == "measure" and "--list" not in arguments
        if result.exit_code != (5 if is_measuring else 0):
            refused.append((arguments, result.output))
    assert refused == []


@pytest.fixture(scope="module")
def rows_of_examples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, str]]]:
    """The rows of each example by the name of its folder."""
    folder = tmp_path_factory.mktemp("examples")
    t3sim(*(["run", str(path), "-o", str(folder / path.parent.name), "--no-figures"] for path in EXAMPLES))
    return {path.parent.name: rows_of(folder / path.parent.name) for path in EXAMPLES}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_example_runs(path: Path, rows_of_examples: dict[str, list[dict[str, str]]]) -> None:
    rows = rows_of_examples[path.parent.name]
    named = {row[column] for row in rows for column in ("arbitration", "strategy")}
    assert {path.parent.name, path.parent.name.replace("_", "-")} & named
    assert all(float(row["speedup"]) >= 1 for row in rows)


@pytest.mark.parametrize(
    ("document", "source"),
    [
        ("docs/users/tutorial.md", "age_limit/age_limit.py"),
        ("docs/developers/extending.md", "push_near_memory/push_near_memory.py"),
    ],
)
def test_shown_code_is_the_example(document: str, source: str) -> None:
    shown = blocks(REPOSITORY / document, "python")
    assert shown
    assert shown[0] in (REPOSITORY / "docs" / "examples" / source).read_text(encoding="utf-8")


def test_python_of_the_users_pages_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks(USERS / "outputs.md", "python")
    monkeypatch.chdir(REPOSITORY)
    exec(compile(code, "outputs.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "waiting for operands" in printed
    assert len(printed.splitlines()) == 3


def test_experiment_of_the_users_pages_is_accepted(tmp_path: Path) -> None:
    (full,), (machine, nodes, ring) = blocks(USERS / "run.md", "yaml"), blocks(USERS / "machines.md", "yaml")
    (tmp_path / "my_policy.py").write_text('"""Nothing."""\n', encoding="utf-8")
    changed = re.sub(r"^(machine|tiling):.*\n", "", full, flags=re.MULTILINE) + machine
    on_nodes = "name: nodes\nstrategy: sequential\n" + nodes
    unlike = re.sub(r"^(machine|mode):.*\n", "", full, flags=re.MULTILINE) + ring
    for name, text in (("full", full), ("changed", changed), ("nodes", on_nodes), ("unlike", unlike)):
        file = tmp_path / f"{name}.yaml"
        file.write_text(text, encoding="utf-8")
        result = CliRunner().invoke(main, ["config", "check", str(file)])
        assert result.exit_code == 0, result.output


def test_shown_messages_are_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(
        "name: bad\nmachine: t3-150\nworkload: {model: T-NLG, sublayer: FC-3, tp: 8}\nstrategy: t3\n"
        "arbitraton: mca\nmode: mirrored\nquantum: 500\n",
        encoding="utf-8",
    )
    shown = next(text for text in blocks(USERS / "run.md", "") if "config check c.yaml" in text)
    result = CliRunner().invoke(main, ["config", "check", "c.yaml"])
    assert result.exit_code == 2
    assert result.output.strip().splitlines() == shown.strip().splitlines()[1:]


def test_readme_reduce_scatter_of_the_demo() -> None:
    """One cell of a table that `test_tables_of_the_readme` compares as a whole, in two seconds."""
    shown = generated_table(REPOSITORY / "README.md", "demo")
    parts = ObservedParts(load_experiment(DEMO, ["strategy=sequential"]).points[0])
    phase = parts.of(reduce_scatter_part(parts.op))
    simulated = f"{parts.machines[-1].core.ticks.to_us(phase.ticks):.1f}"
    assert simulated == shown["sequential"][shown["strategy"].index("RS")], REFRESH


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_tables_of_the_readme() -> None:
    """Every cell of every table."""
    done = subprocess.run(
        [sys.executable, "docs/refresh.py", "--check"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stderr}\n{REFRESH}"


class TestStrategies:
    """Each strategy has a section with its declared parameters, and a picture if it is no bound."""

    PAGE = REPOSITORY / "docs" / "strategies.md"

    def missing(self, text: str) -> list[str]:
        """Return the strategies whose section lacks something."""
        parameters = runpy.run_path(str(REPOSITORY / "docs" / "refresh.py"))["parameters_of"]
        sections = dict(re.findall(r"^### (\S+)\n(.*?)(?=^##|\Z)", text, re.DOTALL | re.MULTILINE))
        found = []
        for one in (one for one in in_order() if not is_of_a_user(home_of(one.plan)[0])):
            has_picture = f"images/timeline-{one.name}.png" in sections.get(one.name, "")
            is_complete = one.name in sections and parameters(one) in sections[one.name]
            if not is_complete or has_picture != (one.kind in ("design", "baseline")):
                found.append(one.name)
        return found

    def test_none_is_missing(self) -> None:
        assert self.missing(self.PAGE.read_text(encoding="utf-8")) == [], REFRESH

    def test_the_table_of_those_on_one_node_is_what_they_declare(self) -> None:
        table = runpy.run_path(str(REPOSITORY / "docs" / "refresh.py"))["nodes_table"]()
        assert f"<!-- begin nodes -->\n{table}\n<!-- end nodes -->" in self.PAGE.read_text(encoding="utf-8"), REFRESH


def test_tour_names_functions_of_the_linked_files() -> None:
    page = REPOSITORY / "docs" / "developers" / "tour.md"
    stops = re.findall(r"\]\(([^)]+\.py)\), `(\w+)`", page.read_text(encoding="utf-8"))
    assert len(stops) >= 12
    assert [(file, name) for file, name in stops if f"def {name}(" not in (page.parent / file).read_text()] == []


def test_accuracy_table_gives_held_out_points_apart(tmp_path: Path) -> None:
    points = [{**point, "held_out": "true" if point["line"] == 3 else "false"} for point in POINTS]
    refresh = runpy.run_path(str(REPOSITORY / "docs" / "refresh.py"))
    shown = refresh["accuracy_table"](read_validation(write_tables(tmp_path, points)).points)
    rows = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in shown.splitlines()}
    assert rows["collectives from 16 MB"][1:] == ["3", "4.7 %", "5.0 %", "+1.3 %", "1", "5.0 %"]


def test_the_table_of_machines_is_that_of_the_presets() -> None:
    """Origins of their values, and the errors of validation/machines.csv."""
    page = (REPOSITORY / "docs" / "users" / "machines.md").read_text(encoding="utf-8")
    table = runpy.run_path(str(REPOSITORY / "docs" / "refresh.py"))["machines_table"]()
    assert f"<!-- begin machines -->\n{table}\n<!-- end machines -->" in page, "run docs/refresh.py --machines"
