"""From a real run to its report: the files of the one are what the other reads."""

from __future__ import annotations

import json
from pathlib import Path

from tests.harness.here import t3sim_here
from tests.smoke.command_line import ONE_POINT, entries


def test_a_run_can_be_reported(base: Path, tmp_path: Path) -> None:
    resolved = json.loads((base / "resolved.json").read_text(encoding="utf-8"))
    assert (resolved["name"], resolved["description"], resolved["figures"]) == ("tiny", "", [])
    before = entries(base)
    done = t3sim_here("report", base, "-o", tmp_path / "page.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("data:image/svg+xml") == 2
    assert "5 points simulated, in 1 case." in page
    assert "records digest" in page
    assert entries(base) == before


def test_unknown_figures_are_refused_before_anything_is_simulated(tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text(ONE_POINT + "figures: [speedup, swep]\n", encoding="utf-8")
    for command in (("config", "check", "e.yaml"), ("run", "e.yaml", "-o", "out")):
        done = t3sim_here(*command, cwd=tmp_path)
        assert done.returncode == 2
        assert "unknown figure `swep`; did you mean `sweep`?" in done.stderr
    assert entries(tmp_path) == ["e.yaml"]
