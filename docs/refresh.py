"""Regenerate the numbers of the documents, and their figures, from the simulator.

    .venv/bin/python docs/refresh.py                     # README.md, users/tutorial.md, the figure: five minutes
    .venv/bin/python docs/refresh.py --check             # the same, but write nothing: name the tables that differ
    .venv/bin/python docs/refresh.py --accuracy DIR...   # docs/accuracy.md, from folders that `t3sim validate` left
    .venv/bin/python docs/refresh.py --study results     # notes/t3-study.md, experiments/*: from `make study`
    .venv/bin/python docs/refresh.py --strategies        # docs/strategies.md and its timelines: about five minutes
    .venv/bin/python docs/refresh.py --machines          # docs/users/machines.md

A generated part stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.  The prose around it
is written by hand: read it again when a number has moved.
"""

from __future__ import annotations

import argparse
import csv
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pandas as pd
from PIL import Image

from t3lab.report.validation import Validation, error_text, held_out, read_validation, summary_of, unused
from t3sim.analysis.figures import figures_of
from t3sim.config.presets import preset_names
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position
from t3sim.experiment.planning.plan import load_experiment
from t3sim.experiment.running.runner import Outcome, run
from t3sim.results.record import RunRecord
from t3sim.results.writer import read_results
from t3sim.strategies import OverlapStrategy, in_order

ROOT = Path(__file__).resolve().parent.parent
DEMO = "experiments/t3-tnlg-fc2/experiment.yaml"
AGE_LIMIT = "docs/examples/age_limit/experiment.yaml"
REAL = ("machine=t3-150", "tiling=gemm-256x128", "workload={model: T-NLG, sublayer: FC-2, tp: 8}")
FUSED = ("sequential", "t3", "t3-mca")
STRATEGIES_PAGE, ACCURACY_PAGE, TUTORIAL_PAGE = "docs/strategies.md", "docs/accuracy.md", "docs/users/tutorial.md"
MACHINES_PAGE, ERRORS_OF_MACHINES = "docs/users/machines.md", "validation/machines.csv"
# Groups of values of a machine by the beginnings of their keys; what T3 adds to a product is left out.
GROUPS_OF_VALUES = {
    "compute": ("gpu.n_compute", "gpu.compute_", "gpu.operating_points", "gpu.kernel_launch"),
    "L2": ("gpu.l2.",), "memory": ("memory.",), "link": ("link.",), "collectives": ("gpu.collective_kernel",),
}  # fmt: skip
# What values of other machines rest on.
BASES = ("configs/gpu/h200.yaml", "configs/link/nvlink4-switch.yaml")
# Groups of a validation that docs/accuracy.md leaves out: parts of what other rows say.
NO_RESULT = frozenset({
    "GEMM of a sublayer alone", "RS of a sublayer alone", "the same GEMM alone", "the same RS alone",
    "slowdown of these SMs", "the same, all GPUs start at row 0", "ratio of these two", "mean time of a tile",
    "mean main loop of a tile (fitted)", "mean stores of a tile", "drift of the SMs", "the same SMs alone",
    "tile timeline, first start to last end", "GEMM in a green context",
    "loads, stores of several below 1 MB", "AG, then GEMM",
})  # fmt: skip
# What docs/strategies.md shows every strategy on, and what some of them need besides.
SHOWN: dict[str, Any] = {
    "name": "timelines", "machine": "h200", "tiling": "gemm-128x256",
    "workload": {"gemm": {"m": 8192, "n": 8192, "k": 3584}, "tp": 4},
}  # fmt: skip
SHOWN_EXPERTS: dict[str, Any] = {
    "n_experts": 64, "top_k": 6, "hidden": 2048, "intermediate": 1408, "tokens_per_gpu": 512, "ep": 4,
    "element": "bf16",
}  # fmt: skip
SHOWN_PARAMETERS = {"cu-split": {"communication_units": 24}, "isolated-cu-split": {"communication_units": 24}}
STRATEGIES = (*FUSED, "ideal-overlap", "ideal-rs-nmc")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; all columns but the first are numbers."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None, digits: int = 1, scale: float = 1) -> str:
    """Return *value* over *scale*; nothing if there is no such quantity."""
    return "" if value is None else f"{value / scale:.{digits}f}"


def inserted(text: str, blocks: dict[str, str], path: str) -> str:
    """Return the *text* of a document with its generated parts replaced."""
    for name, block in blocks.items():
        begin, end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->"
        pattern = re.escape(begin) + ".*?" + re.escape(end)
        text, n = re.subn(pattern, lambda _, new=begin + block + end: new, text, flags=re.DOTALL)
        if n != 1:
            raise SystemExit(f"{path}: {n} places for {name}")
    return text


def insert(path: str, blocks: dict[str, str]) -> None:
    """Replace the generated parts of a document."""
    file = ROOT / path
    file.write_text(inserted(file.read_text(encoding="utf-8"), blocks, path), encoding="utf-8")


def outdated(text: str, blocks: dict[str, str], path: str) -> list[str]:
    """Return the names of the generated parts of *text* that are not as in *blocks*, to the last digit."""
    return [name for name, block in blocks.items() if inserted(text, {name: block}, path) != text]


def outcome_of(path: str, folder: Path, *overrides: str) -> Outcome:
    """Run an experiment into *folder*."""
    return run(load_experiment(ROOT / path, overrides), folder)


def by_strategy(outcome: Outcome) -> dict[str, Any]:
    """Return the record of each strategy of one workload."""
    return {record.strategy: record for record in outcome.records}


def demo_table(demo: Outcome) -> str:
    """Return times and traffic of the demo."""
    header = [
        "strategy",
        "GEMM",
        "RS",
        "fused",
        "AG",
        "total",
        "speedup",
        "GEMM reads",
        "GEMM writes",
        "RS reads",
        "RS writes",
    ]
    rows = []
    for r in demo.records:
        times = (None if r.fused_us else r.gemm_us, r.rs_us, r.fused_us, r.ag_us, r.time_us)
        traffic = (r.dram_gemm_read_bytes, r.dram_gemm_write_bytes, r.dram_rs_read_bytes, r.dram_rs_write_bytes)
        rows.append(
            [f"`{r.strategy}`", *map(number, times), number(r.speedup, 3), *(number(b, 1, 1e6) for b in traffic)]
        )
    return table(header, rows)


def unit_times(phase: Any, us: float) -> list[str]:
    """Return how long the average compute unit multiplied, waited for operands, stored, and did something else."""
    states = phase.counters["cu_states"]
    per_us = sum(states.values()) / us
    waiting = states["waiting for operands"] + states["waiting for the first operands"]
    parts = [states["multiplying"], waiting, states["storing"]]
    parts.append(sum(states.values()) - sum(parts))
    return [number(part / per_us) for part in parts]


def units_table(demo: Outcome, half: Outcome) -> str:
    """Return what compute units spend their time with."""
    header = [
        "time of the average compute unit (us)",
        "multiplying",
        "waiting for operands",
        "storing",
        "launching or idle",
    ]
    header.append("spread of workgroups")
    rows = []
    for where, outcome in (("", demo), (", 75 GB/s", half)):
        for result in outcome.results[:3]:
            fused = result.phase("fused")
            phase = fused or result.phase("gemm")
            assert phase is not None
            if fused is None and where:
                continue
            name = "GEMM alone" if fused is None else f"`{result.run.strategy}`, fused"
            times = unit_times(phase, result.ticks.to_us(phase.ticks))
            rows.append([name + where, *times, number(phase.counters["workgroup_spread"], 3)])
    return table(header, rows)


def link_table(demo: Outcome, half: Outcome) -> str:
    """Return the demo with the whole and with half the link bandwidth."""
    full, slow = by_strategy(demo), by_strategy(half)
    header = ["", *(f"`{name}`" for name in STRATEGIES[:4])]
    rows = [
        ["total at 150 GB/s (us)", *(number(full[s].time_us) for s in STRATEGIES[:4])],
        ["total at 75 GB/s (us)", *(number(slow[s].time_us) for s in STRATEGIES[:4])],
        ["speedup at 150 GB/s", *(number(full[s].speedup, 3) for s in STRATEGIES[:4])],
        ["speedup at 75 GB/s", *(number(slow[s].speedup, 3) for s in STRATEGIES[:4])],
        ["RS alone at 75 GB/s (us)", number(slow["sequential"].rs_us), "", "", ""],
        ["fused at 150 GB/s (us)", *(number(full[s].fused_us) for s in STRATEGIES[:4])],
        ["fused at 75 GB/s (us)", *(number(slow[s].fused_us) for s in STRATEGIES[:4])],
    ]
    return table(header, rows)


def lines_table(changed: dict[str, Outcome]) -> str:
    """Return what one changed line does to the demo."""
    header = ["", "GEMM alone (us)", "`t3` fused (us)", "`t3-mca` fused (us)", "`t3` speedup", "`t3-mca` speedup"]
    rows = []
    for name, outcome in changed.items():
        records = by_strategy(outcome)
        base, t3, mca = (records[s] for s in FUSED)
        times = (base.gemm_us, t3.fused_us, mca.fused_us)
        rows.append([name, *map(number, times), number(t3.speedup, 3), number(mca.speedup, 3)])
    return table(header, rows)


def policy_table(folder: Path) -> str:
    """Return the example policy and the built-in ones."""
    limits = (200, 1000, 5000)
    header = ["fused time (us)", "round robin", *(f"`age_limit` {limit}" for limit in limits), "MCA"]
    rows = []
    for name, overrides in (("`t3-tiny`, GEMM 1024 x 512 x 512, TP 4", ()), ("`t3-150`, T-NLG FC-2, TP 8", REAL)):
        policies = ", ".join(["round_robin", *(f"{{policy: age_limit, limit: {limit} cycles}}" for limit in limits)])
        axis = f"sweep.grid.arbitration=[{policies}]"
        times = [r.fused_us for r in outcome_of(AGE_LIMIT, folder, *overrides, axis).records if r.fused_us]
        rows.append([name, *map(number, times)])
    return table(header, rows)


def targets_table(path: Path) -> str:
    """Return published and simulated values, as ``t3sim report --targets`` wrote it."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [
            [row["statement"].replace("|", r"\|"), row["published"], row["ours"], row["band"], row["verdict"]]
            for row in csv.DictReader(file)
            if not row["id"].startswith(("t3.table", "t3.track"))
        ]
    return table(["", "published", "t3sim", "band", "verdict"], rows)


def refresh_study(results: Path) -> None:
    """Write the tables of the notes on the T3 study, and the figures of the experiments next to their READMEs."""
    tables = study_tables(read_results(results / "t3-sublayers" / "results.csv"))
    insert("validation/notes/t3-study.md", {**tables, "targets": targets_table(results / "targets.csv")})
    for experiment in sorted(ROOT.glob("experiments/*/experiment.yaml")):
        folder = results / experiment.parent.name
        for name in load_experiment(experiment).figures:
            for figure in sorted(folder.glob(f"{name}*.png")):
                shutil.copyfile(figure, experiment.parent / figure.name)
        for name in ("crossovers.csv", "sensitivity.csv"):
            if (folder / name).exists():
                shutil.copyfile(folder / name, experiment.parent / name)


def study_tables(study: Sequence[RunRecord]) -> dict[str, str]:
    """Return the tables of the notes on the T3 study."""
    cases: dict[str, dict[str, Any]] = {}
    for r in study:
        cases.setdefault(f"{r.model} {r.sublayer}, TP {r.tp}", {})[r.strategy] = r
    published = {
        "published-overlap": ("1.35", "1.50"),
        "t3": ("1.20", "1.39"),
        "t3-mca": ("1.30", "1.47"),
        "published-rs-nmc": ("", ""),
    }
    headline = []
    for strategy, (geomean, largest) in published.items():
        speedups = [case[strategy].speedup for case in cases.values()]
        headline.append([f"`{strategy}`", geomean, mean_and_max(speedups)[0], largest, mean_and_max(speedups)[1]])
    gains = [case["t3-mca"].speedup / case["t3"].speedup for case in cases.values()]
    headline.append(["`t3-mca` over `t3`", "1.13 (1.30 / 1.20 = 1.083)", *mean_and_max(gains)])
    headline[-1].insert(3, "1.29")
    rows, traffic = [], []
    for name, case in cases.items():
        if " FC-1," in name:  # of the same shape as FC-2
            continue
        base, t3, mca, nmc = case["sequential"], case["t3"], case["t3-mca"], case["published-rs-nmc"]
        times = map(number, (base.gemm_us, base.rs_us, base.ag_us))
        speedups = (number(case[s].speedup, 3) for s in published)
        rows.append([name, *times, *speedups, number(t3.fused_us / max(base.gemm_us, nmc.rs_us), 3)])
        reads = [number(case[s].dram_gemm_read_bytes, 1, 1e6) for s in FUSED]
        hits = [number(case[s].l2_hit_rate, 3) for s in ("sequential", "t3")]
        others = [number(base.rs_us / nmc.rs_us, 3), number(base.dram_rs_read_bytes / t3.dram_rs_read_bytes, 2)]
        stalls = [str(t3.tracker_stalls), str(mca.tracker_stalls)]
        traffic.append([name, *reads, *hits, *others, str(mca.mca_threshold), *stalls])
    return {
        "headline": table(["", "published geomean", "t3sim geomean", "published maximum", "t3sim maximum"], headline),
        "cases": table(
            ["sublayer", "GEMM", "RS", "AG", *(f"`{s}`" for s in published), "fused over limit"],
            rows,
        ),
        "counters": table(
            ["sublayer", *(f"operand reads, `{s}` (MB)" for s in FUSED), "L2 hits, `sequential`", "L2 hits, `t3`",
             "RS over near-memory RS", "RS reads, `sequential` over `t3`", "threshold", "stalls, `t3`",
             "stalls, `t3-mca`"],
            traffic,
        ),
    }  # fmt: skip


def parameters_of(strategy: OverlapStrategy) -> str:
    """Return the parameters that a strategy declares with their defaults, or nothing."""
    shown = [
        f"`{key}`" + ("" if one.default is None else f" = {one.default}") for key, one in strategy.parameters.items()
    ]
    return f" [Parameters](reference.md#strategies): {', '.join(shown)}." if shown else ""


def nodes_table() -> str:
    """Return which strategies need their GPUs on one node, and why."""
    by_reason: dict[str, list[str]] = {}
    for one in (one for one in in_order() if one.one_node):
        by_reason.setdefault(one.one_node, []).append(f"`{one.name}`")
    return "\n".join(["| on one node only | why, and what to take on several |", "| --- | --- |"]
                     + [f"| {', '.join(names)} | {reason} |" for reason, names in by_reason.items()])  # fmt: skip


def strategy_block(strategy: OverlapStrategy, record: RunRecord, reference: RunRecord, has_picture: bool) -> str:
    """Return what is generated of the section of a strategy: its label, time, parameters and timeline."""
    label = {"bound": "bound", "estimate": "bound"}.get(strategy.kind)
    label = label or (f"needs {strategy.needs}" if strategy.needs else "exists today")
    time = f"{record.time_us:.0f} us, {reference.time_us / record.time_us:.2f} x `{reference.strategy}`"
    lines = [f"*{', '.join(strategy.operators)}; {label}.* Here {time}.{parameters_of(strategy)}"]
    if has_picture:
        lines.append(f"![Operations of {strategy.name} over time](images/timeline-{strategy.name}.png)")
    return "\n\n".join(lines)


def shown(name: str, operator: str, folder: Path) -> RunRecord:
    """Run a strategy on what its page shows, into ``OPERATOR-NAME`` of *folder*; parts are simulated once."""
    workload = {**SHOWN["workload"], "operator": operator}
    if operator == "moe":
        workload = {"operator": operator, "experts": SHOWN_EXPERTS}
    experiment = load_experiment({
        **SHOWN, "workload": workload,
        "strategy": {"name": name, **SHOWN_PARAMETERS.get(name, {})},
    })  # fmt: skip
    [record] = run(experiment, folder / f"{operator}-{name}", phases=folder / "phases").records
    return record


def refresh_strategies(folder: Path) -> None:
    """Run every strategy on one GEMM, and write the tables and the pictures of its page."""
    gemm = SHOWN["workload"]["gemm"]
    blocks = {
        "nodes": nodes_table(),
        "case": f"Times are of a GEMM of {gemm['m']} x {gemm['n']} x {gemm['k']} on each of four GPUs of the machine"
        f" `h200`, kernel `{SHOWN['tiling']}`, and of its collectives: before it, or after it with an all-gather."
        " Layers of experts (`moe`) have {n_experts} experts, {top_k} of them for each of {tokens_per_gpu} tokens of a"
        " GPU, hidden size {hidden}, intermediate size {intermediate}.".format(**SHOWN_EXPERTS),
    }
    for strategy in in_order():
        operator = strategy.operators[0]
        record, reference = (
            shown(strategy.name, operator, folder),
            shown("moe-sequential" if operator == "moe" else "sequential", operator, folder),
        )
        has_picture = strategy.kind in ("design", "baseline")
        blocks[strategy.name] = strategy_block(strategy, record, reference, has_picture)
        if has_picture:
            drawn = figures_of(folder / f"{operator}-{strategy.name}", ["timeline"])["timeline"]
            picture = Image.open(next(path for path in drawn if path.suffix == ".png"))
            small = picture.convert("RGB").quantize(32)
            small.save(ROOT / f"docs/images/timeline-{strategy.name}.png", optimize=True)
    insert(STRATEGIES_PAGE, blocks)


def mean_and_max(values: Sequence[float]) -> list[str]:
    """Return geometric mean and maximum."""
    return [number(geometric_mean(values), 3), number(max(values), 3)]


def readme_tables(folder: Path) -> dict[str, str]:
    """Return the tables of README.md; the results of the demo are left in ``demo`` of *folder*."""
    demo = outcome_of(DEMO, folder / "demo")
    half = outcome_of(DEMO, folder / "half", "machine.link.bandwidth=75 GB/s")
    changed = {
        "`t3-150` as it is": demo,
        '`-s machine.gpu.l2.capacity="8 MiB"`': outcome_of(DEMO, folder / "l2", "machine.gpu.l2.capacity=8 MiB"),
        "`-s machine.memory.queue.kind=split`": outcome_of(DEMO, folder / "split", "machine.memory.queue.kind=split"),
        "`-s tiling=gemm-128x128`": outcome_of(DEMO, folder / "tiling", "tiling=gemm-128x128"),
    }
    return {
        "demo": demo_table(demo), "units": units_table(demo, half), "link": link_table(demo, half),
        "lines": lines_table(changed), "policy": policy_table(folder / "policy"),
    }  # fmt: skip


def tables_by_page(tables: dict[str, str]) -> dict[str, dict[str, str]]:
    """Return the tables of the demo by the page that shows them."""
    return {"README.md": {"demo": tables.pop("demo")}, TUTORIAL_PAGE: tables}


def refresh_readme(folder: Path) -> None:
    """Write the tables of README.md and of the tutorial, and the figure."""
    for page, blocks in tables_by_page(readme_tables(folder)).items():
        insert(page, blocks)
    figure = figures_of(folder / "demo", ["speedup"])["speedup"]
    shutil.copyfile(next(path for path in figure if path.suffix == ".png"), ROOT / "docs/images/speedup.png")


def check_readme(folder: Path) -> None:
    """Raise ``SystemExit`` that names the tables of README.md and of the tutorial which differ from the simulator's."""
    for page, blocks in tables_by_page(readme_tables(folder)).items():
        names = outdated((ROOT / page).read_text(encoding="utf-8"), blocks, page)
        if names:
            raise SystemExit(f"{page}: not what the simulator says: {', '.join(names)}")


def refresh_accuracy(folders: Sequence[Path]) -> None:
    """Write the table of each machine that was validated in *folders*; those of other machines stay."""
    found: dict[str, list[pd.DataFrame]] = {}
    for folder in folders:
        validation = read_validation(folder)
        found.setdefault(str(validation.manifest["machine"]), []).append(validation.points)
    insert(ACCURACY_PAGE, {name: accuracy_table(pd.concat(points)) for name, points in found.items()})


def accuracy_table(points: pd.DataFrame) -> str:
    """Return errors by kind: over points that nothing was fitted to, and over the held-out ones of these."""
    header = ["kind of measurement", "points", "mean error", "largest", "bias", "held-out points", "mean error"]
    rows = []
    for group, members in Validation(points, pd.DataFrame()).groups:
        if group.title in NO_RESULT:
            continue
        of_all, apart = summary_of(unused(members)), summary_of(held_out(unused(members)))
        if of_all.n:
            ratio = bool((members["unit"] == "ratio").all())
            errors = [error_text(value, ratio) for value in (of_all.mape, of_all.largest)]
            bias = error_text(of_all.bias, ratio, sign="+")
            rows.append([group.title, str(of_all.n), *errors, bias, str(apart.n), error_text(apart.mape, ratio)])
    return table(header, rows)


def origins_of(name: str) -> dict[str, Counter[str]]:
    """Return how many values of each group of a machine have which origin, or are those of another machine."""
    found: dict[str, Counter[str]] = {group: Counter() for group in GROUPS_OF_VALUES}
    for path, leaf in resolve_machine(Node(name, Position(""))).tree.leaves():
        key, file = ".".join(path), str(leaf.position.file)
        is_of_another = file.endswith(BASES) or ("configs/machine/" in file and Path(file).stem != name)
        origin = "other" if is_of_another and name != "h200" else leaf.origin
        for group, beginnings in GROUPS_OF_VALUES.items():
            if key.startswith(beginnings) and origin:
                found[group][origin] += 1
    return found


def machines_table() -> str:
    """Return the table of shipped machines: origins of their values by group, and how far off they are."""
    origins_of_letters = ("datasheet", "measured", "fitted", "derived", "assumed", "paper", "other")
    letters = dict(zip(origins_of_letters, "DMFCAPH", strict=True))
    with (ROOT / ERRORS_OF_MACHINES).open(encoding="utf-8", newline="") as file:
        errors: dict[str, list[str]] = {}
        for row in csv.DictReader(file):
            errors.setdefault(row["machine"], []).append(f"{row['what']} {row['error']}")
    rows = []
    for name in preset_names("machine"):
        if name.startswith("t3-"):
            continue
        origins = origins_of(name)
        cells = [" ".join(f"{letter}{n}" for key, letter in letters.items() if (n := origins[group][key]))
                 for group in GROUPS_OF_VALUES]  # fmt: skip
        rows.append([f"`{name}`", *cells, "; ".join(errors.get(name, ["not compared"]))])
    lines = table(["machine", *GROUPS_OF_VALUES, "mean error"], rows).splitlines()
    return "\n".join([lines[0], "| --- " * (len(GROUPS_OF_VALUES) + 2) + "|", *lines[2:]])


def main() -> None:
    """Run what the documents describe and write its numbers into them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--study", type=Path, metavar="RESULTS", help="what `make study` left; writes its numbers")
    parser.add_argument("--strategies", action="store_true", help="write docs/strategies.md and its pictures")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a table of the demo differs")
    parser.add_argument("--accuracy", type=Path, nargs="+", metavar="DIR", help="validations; writes docs/accuracy.md")
    parser.add_argument("--machines", action="store_true", help="write the table of docs/users/machines.md")
    arguments = parser.parse_args()
    if arguments.machines:
        insert(MACHINES_PAGE, {"machines": machines_table()})
        return
    if arguments.study is not None:
        refresh_study(arguments.study)
        return
    if arguments.accuracy:
        refresh_accuracy(arguments.accuracy)
        return
    with tempfile.TemporaryDirectory() as temporary:
        refresh = refresh_strategies if arguments.strategies else check_readme if arguments.check else refresh_readme
        refresh(Path(temporary))


if __name__ == "__main__":
    main()
