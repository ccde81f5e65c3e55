"""The report as a browser shows it: it renders without a network, its tables sort and filter, its figures have a size.

Chromium is asked for the page as it stands after its script has run. Where there is none, the tests are skipped;
`.ci/run` installs it where it may. The screenshots are kept in ``build/artefacts``.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from t3sim.analysis.folder import read_folder
from t3sim.analysis.report import report_html
from tests.analysis.folders import link_sweep, study, write_folder
from tests.conftest import REPOSITORY

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--hide-scrollbars", "--window-size=1280,2400",
    "--proxy-server=127.0.0.1:9",  # nobody listens: whatever the page asked of a network would fail
)  # fmt: skip
ARTEFACTS = REPOSITORY / "build" / "artefacts"
HANG_S = 120

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")


# Added to the page by the tests: what the browser made of each figure.
MEASURE = """<script>
addEventListener("load", () => {
  for (const image of document.images) {
    const { width, height } = image.getBoundingClientRect();
    image.dataset.shown = image.naturalWidth > 0 ? `${Math.round(width)}x${Math.round(height)}` : "broken";
  }
});
</script>
</body>"""


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report about a sweep and a study of two cases."""
    folder = tmp_path_factory.mktemp("browser")
    link_sweep(folder / "links", figures=["sweep"])
    write_folder(folder / "study", study(2), figures=["runtime_split"])
    return report_html([read_folder(folder / "links"), read_folder(folder / "study")])


def shown(html: str, folder: Path, fragment: str = "", screenshot: Path | None = None) -> str:
    """Show a page in a fresh browser and return what it is after its script has run."""
    page = folder / "report.html"
    page.write_text(html.replace("</body>", MEASURE), encoding="utf-8")
    output = [f"--screenshot={screenshot}"] if screenshot else []
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={folder / 'profile'}", *output, "--dump-dom",
         f"{page.as_uri()}#{fragment}"],
        capture_output=True, encoding="utf-8", timeout=HANG_S, check=True,
    )  # fmt: skip
    return done.stdout


def column(dom: str, table: str, name: str) -> list[str]:
    """Return the texts of a column of the rows that are not hidden, from top to bottom."""
    (content,) = re.findall(rf'<table id="{table}".*?</table>', dom, re.DOTALL)
    names = re.findall(r'<th [^>]*data-name="([^"]*)"', content)
    rows = re.findall(r"<tr(?: hidden=\"\")?>.*?</tr>", content.split("<tbody>")[1], re.DOTALL)
    visible = [row for row in rows if not row.startswith("<tr hidden")]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)[names.index(name)] for row in visible]


def test_the_page_renders_and_leaves_a_screenshot(html: str, tmp_path: Path) -> None:
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    screenshot = ARTEFACTS / "report.png"
    screenshot.unlink(missing_ok=True)
    dom = shown(html, tmp_path, screenshot=screenshot)
    assert 'data-ready="yes"' in dom
    assert "9 of 9 rows" in dom
    assert column(dom, "results-1", "speedup") == [
        "1.000",
        "1.400",
        "1.200",
        "1.000",
        "1.200",
        "1.300",
        "1.000",
        "1.100",
        "1.300",
    ]
    sizes = [tuple(map(int, size.split("x"))) for size in re.findall(r'data-shown="([^"]*)"', dom)]
    assert len(sizes) == 2
    assert all(300 <= width <= 1180 and 200 <= height <= 1600 for width, height in sizes)
    picture = screenshot.read_bytes()
    assert [int.from_bytes(picture[i : i + 4]) for i in (16, 20)] == [1280, 2400]
    assert len(picture) > 50_000  # an empty page of this size has 10 kB


def test_a_table_sorts_and_filters(html: str, tmp_path: Path) -> None:
    dom = shown(html, tmp_path, "table=results-1&sort=speedup&order=descending&filter=T3-mca&columns=all")
    assert column(dom, "results-1", "speedup") == ["1.300", "1.300", "1.200"]
    assert 'aria-sort="descending"' in dom
    assert "3 of 9 rows" in dom
    assert '<table id="results-1" class="sortable">' in dom
    assert '<table id="results-2" class="sortable brief">' in dom


def test_a_broken_figure_and_an_error_in_the_script_are_noticed(html: str, tmp_path: Path) -> None:
    damaged = html.replace("data:image/svg+xml;base64,", "data:image/svg+xml;base64,AAAA")
    damaged = damaged.replace('"use strict";', '"use strict"; missing();', 1)
    dom = shown(damaged, tmp_path, "table=results-1&sort=speedup&order=descending")
    assert set(re.findall(r'data-shown="([^"]*)"', dom)) == {"broken"}
    assert "data-ready" not in dom
    assert column(dom, "results-1", "speedup")[0] == "1.000"
