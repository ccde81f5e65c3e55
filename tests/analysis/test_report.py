"""The report: what it says, that nothing of a file reaches the page unescaped, and its command."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from click.testing import CliRunner

from t3sim.analysis.findings import leaders_of, sentences, strategy_summaries, takeaway
from t3sim.analysis.folder import Results, read_folder
from t3sim.analysis.report import report_html, results_table
from t3sim.cli.report import report
from t3sim.errors import InputDataError, UsageError
from t3sim.results.record import COLUMNS
from tests.analysis.folders import SEQUENTIAL, T3, link_sweep, write_folder
from tests.conftest import REPOSITORY

VOID = {"meta", "img", "input", "br", "link"}


class Page(HTMLParser):
    """A parsed page: every element with its attributes, whether tags match, the text outside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag]
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def external_addresses(html: str) -> list[str]:
    """Everything in a page that a browser would fetch from elsewhere."""
    page = Page(html)
    named = [
        value
        for _, attributes in page.elements
        for name, value in attributes.items()
        if name in ("src", "href", "action", "data", "poster", "srcset") and not value.startswith(("#", "data:"))
    ]
    styles = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    return named + [found for style in styles for found in re.findall(r"url\([^)]*\)|@import[^;]*", style)]


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page about a sweep and a folder without anything but results."""
    folder = tmp_path_factory.mktemp("report")
    link_sweep(folder / "links", description="Where does the link stop mattering?", figures=["sweep"])
    write_folder(folder / "plain", [SEQUENTIAL, T3], figures=["layer"])
    return report_html([read_folder(folder / "links"), read_folder(folder / "plain")])


def test_the_page_is_whole_and_needs_nothing_from_elsewhere(html: str) -> None:
    page = Page(html)
    assert page.open == []
    assert external_addresses(html) == []
    (policy,) = [meta["content"] for meta in page.all("meta") if "http-equiv" in meta]
    assert policy.startswith("default-src 'none'")


def test_the_page_says_what_was_asked_and_found(html: str) -> None:
    text = Page(html).text
    assert "Where does the link stop mattering?" in text
    assert "t3-mca passes t3 at 83.3 GB/s, between 50 GB/s and 100 GB/s of machine.link.bandwidth." in text
    assert "Fastest design, in 3 cases: t3-mca in 2, t3 in 1." in text
    assert "t3 and t3-mca need hardware not available today (simulated as part of t3-150)." in text
    assert "No figure layer:" in text
    assert "nothing is known about how these results were made" in text


def test_a_takeaway_names_what_cannot_be_bought_and_what_can(tmp_path: Path) -> None:
    push = dataclasses.replace(T3, strategy="flux-push", time_us=1400.0, fused_us=1020.0)
    fast = dataclasses.replace(T3, operator_us=920.0)
    whole = dataclasses.replace(SEQUENTIAL, operator_us=1220.0)
    found = takeaway(read_folder(write_folder(tmp_path / "both", [whole, fast, push])))
    as_if = "t3 needs hardware not available today (simulated as part of t3-150)."
    assert found == [
        f"t3 is the fastest design: 1.231×. {as_if} Of what runs today: flux-push.",
        "It hides 71% of the reduce-scatter.",
        "The fused run takes 120.0 us longer than the GEMM alone.",
    ]
    on_sale = takeaway(read_folder(write_folder(tmp_path / "today", [SEQUENTIAL, push])))
    assert on_sale == ["flux-push is the fastest design: 1.143×."]
    slow = dataclasses.replace(push, time_us=1700.0)
    assert takeaway(read_folder(write_folder(tmp_path / "slow", [SEQUENTIAL, slow]))) == [
        "No design gains on sequential."
    ]
    alone = takeaway(read_folder(write_folder(tmp_path / "alone", [SEQUENTIAL])))
    assert alone == ["Exposed communication: 50% of the time."]
    assert takeaway(read_folder(write_folder(tmp_path / "none", [T3]))) == []


def test_figures_are_embedded_with_their_size(html: str) -> None:
    (image,) = Page(html).all("img")
    assert (image["width"], image["alt"].split(":")[0]) == (
        "490",
        "Speedup over sequential execution against machine.link.bandwidth",
    )
    kind, content = image["src"].split(",")
    assert kind == "data:image/svg+xml;base64"
    assert b"<svg" in base64.b64decode(content)


def test_what_comes_from_files_is_escaped(tmp_path: Path) -> None:
    evil = '<script>alert("x")</script>'
    record = dataclasses.replace(SEQUENTIAL, model=evil, machine="<b>m</b>", strategy="<i>s</i>")
    axes = {"machine.link.latency": ["<img src=x onerror=y><u>"]}
    folder = write_folder(tmp_path / "<em>f", [record], axes, name=evil, description=evil, overrides=[evil], figures=[])
    (folder / "experiment.yaml").write_text(f"name: {evil}\n", encoding="utf-8")
    (folder / "failed.csv").write_text(f"error\n{evil}\n", encoding="utf-8")
    manifest = {
        "t3sim": evil,
        "command": [evil],
        "packages": {evil: "1"},
        "inputs": {evil: evil},
        "volatile": {"host": evil},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    html = report_html([read_folder(folder)], title=evil)
    page = Page(html)
    assert len(page.all("script")) == 1
    assert page.all("em") == page.all("u") == []
    assert "onerror" not in {name for _, attributes in page.elements for name in attributes}
    assert html.count("<script>alert") == 0
    assert page.text.count(evil) >= 6


def test_the_table_shows_a_choice_and_has_everything() -> None:
    columns = {"time_us": "time (µs)", "speedup": "speedup (×)"}
    fast = dataclasses.replace(T3, speedup=1.25)
    table = results_table(Results(Path("x"), [SEQUENTIAL, fast]), "results-1")
    shown = {column.name: column.title for column in table.columns if "more" not in column.css}
    assert shown.items() >= columns.items()
    assert set(COLUMNS) - {"model", "sublayer", "tp"} <= {column.name for column in table.columns}
    assert [column.name for column in table.columns[:4]] == ["workload", "strategy", "speedup", "time_us"]
    assert [table.rows[0][i].text for i in (0, 1, 3)] == ["T-NLG FC-2, TP 8", "sequential", "1\u202f600.0"]
    assert table.rows[0][3].value == "1600.0"
    assert "workload" not in shown  # one workload: its column is shown on demand
    assert all(column.meaning for column in table.columns)


def test_an_experiment_that_lists_an_unknown_figure_is_refused(tmp_path: Path) -> None:
    results = read_folder(write_folder(tmp_path, [SEQUENTIAL], figures=["speedups"]))
    with pytest.raises(UsageError, match="unknown figure `speedups`; did you mean `speedup`"):
        report_html([results])


# findings


def test_findings_are_those_of_the_table(tmp_path: Path) -> None:
    results = read_folder(link_sweep(tmp_path))
    found = {summary.strategy: summary for summary in strategy_summaries(results)}
    assert found["t3"].geomean == pytest.approx((1.4 * 1.2 * 1.1) ** (1 / 3))
    assert (found["t3"].lowest, found["t3"].highest, found["t3"].n_best) == (pytest.approx(1.1), pytest.approx(1.4), 1)
    assert found["t3"].highest_in == "T-NLG FC-2, TP 8, machine.link.bandwidth 50 GB/s"
    assert sorted(names for case in leaders_of(results).values() for names in case) == ["t3", "t3-mca", "t3-mca"]
    gain = ((1.2 / 1.4) * (1.3 / 1.2) * (1.3 / 1.1)) ** (1 / 3)
    assert f"t3-mca over t3: {gain:.3f}× (geomean of 3), at most 1.182×" in " ".join(sentences(results))


def test_a_lead_within_a_tie_is_no_lead(tmp_path: Path) -> None:
    near = dataclasses.replace(T3, strategy="t3-mca", time_us=1299.5)
    results = read_folder(write_folder(tmp_path, [SEQUENTIAL, T3, near]))
    assert list(leaders_of(results).values()) == [["t3", "t3-mca"]]


# the command


def test_report_command_writes_page_targets_and_figures(tmp_path: Path) -> None:
    write_folder(tmp_path / "b", [SEQUENTIAL, T3], figures=["runtime_split"])
    link_sweep(tmp_path / "a", figures=["layer"])
    targets = tmp_path / "targets.yaml"
    targets.write_text(
        "targets:\n- {id: t3.table1.cus, section: '5', kind: exact, statement: units, published: '80, 1.4 GHz',"
        " equals: ['80', 1.4 GHz]}\n",
        encoding="utf-8",
    )
    result = CliRunner().invoke(report, [str(tmp_path), "--targets", str(targets), "--figures"], catch_exceptions=False)
    assert result.exit_code == 0
    assert "1 met, 0 missed, 0 not run" in result.stdout
    page = Page((tmp_path / "report.html").read_text(encoding="utf-8"))
    assert [link["href"] for link in page.all("a")] == ["#section-1", "#section-2"]
    assert page.text.index("Published results of the T3 study") < page.text.index("Key findings")
    assert (tmp_path / "targets.csv").read_text(encoding="utf-8").splitlines()[1].startswith("t3.table1.cus,units,5,")
    drawn = sorted(path.relative_to(tmp_path / "figures").as_posix() for path in (tmp_path / "figures").rglob("*.p*"))
    assert drawn == [f"b/{kind}/runtime_split.{suffix}" for kind in ("double", "single") for suffix in ("pdf", "png")]
    widths = [
        int.from_bytes((tmp_path / f"figures/b/{kind}/runtime_split.png").read_bytes()[16:20])
        for kind in ("single", "double")
    ]
    assert widths == [700, 1440]


def test_published_targets_come_with_t3sim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "a", [SEQUENTIAL, T3])
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(report, ["a", "--targets", "published"], catch_exceptions=False).exit_code == 0
    rows = (tmp_path / "a" / "targets.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert len(rows) == (REPOSITORY / "validation" / "targets.yaml").read_text(encoding="utf-8").count("- id: ")


def test_report_without_results_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(report, [str(tmp_path)])
    assert isinstance(result.exception, InputDataError)
    assert result.exception.exit_code == 3
    assert "no results" in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_the_index_tells_experiments_of_one_name_apart(tmp_path: Path) -> None:
    """By their overrides, else by their folders; one without results among them is left out with a note."""
    for folder, overrides in (("a", []), ("b", ["tiling=gemm-64x64"]), ("c", [])):
        write_folder(tmp_path / folder / "same", [SEQUENTIAL], figures=[], overrides=overrides)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "validation.csv").write_text("")
    for chosen, told_by in (("ab", ["", "-s tiling=gemm-64x64"]), ("ac", ["a/same", "c/same"])):
        folders = [str(tmp_path / name) for name in (*chosen, "none")]
        result = CliRunner().invoke(report, [*folders, "-o", str(tmp_path / "page.html")], catch_exceptions=False)
        assert "none: no results" in " ".join(result.stderr.split())
        page = (tmp_path / "page.html").read_text(encoding="utf-8").partition("</nav>")[0]
        found = re.findall(r">same</a>(?: <span class=\"quiet\">(.*)</span>)?</li>", page)
        assert [text.removeprefix(f"{tmp_path}/") for text in found] == told_by
