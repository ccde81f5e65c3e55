"""``t3sim selfcheck``: self-test of the simulator on this computer, one line for each property."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

import click

from t3sim.cli._errors import message_lines
from t3sim.cli.run import interrupt_at_once, progress_bar
from t3sim.errors import ModelError, T3SimError, UsageError
from t3sim.registry import unknown_name


@click.command()
@click.option("--deep", is_flag=True, help="Look at much more: about an hour.")
@click.option("--only", metavar="PROPERTY", multiple=True, help="Only this property (may be given several times).")
@click.option("-j", "--jobs", type=click.IntRange(1), default=1, help="Processes for the runs with values.")
def selfcheck(deep: bool, only: tuple[str, ...], jobs: int) -> None:
    """Check the simulator on this machine: conservation, DRAM timing, values, determinism, known results, hangs.

    Ends with exit code 4 if a property does not hold; t3sim's results are not to be trusted then.
    """
    from t3sim.experiment.running.cost import prepare_kernel
    from t3sim.gpu.assemble import layout_for
    from t3sim.gpu.compiled import compiled_advance
    from t3sim.gpu.units.state import Layout
    from t3sim.selfcheck.preset_cases import machine_presets, small_machine
    from t3sim.selfcheck.properties import DEEP, PROPERTIES, Depth

    for name in only:
        if name not in PROPERTIES:
            raise UsageError(unknown_name("property", name, tuple(PROPERTIES)))
    with interrupt_at_once():  # before anything is timed
        layouts = dict.fromkeys([Layout(), *(layout_for(small_machine(name)) for name in machine_presets())])
        prepare_kernel(list(layouts), click.echo)
        for layout in layouts:
            compiled_advance(layout)
    n_failed = 0
    for name, evidence_of in PROPERTIES.items():
        if only and name not in only:
            continue
        started = time.perf_counter()
        try:
            with progress_bar() as show:
                depth = replace(DEEP if deep else Depth(), report=partial(show, name), n_processes=jobs)
                evidence, is_kept = evidence_of(depth), True
        except T3SimError as error:
            evidence, is_kept = "\n".join(message_lines(error)), False
        n_failed += not is_kept
        took = time.perf_counter() - started
        click.echo(f"{'ok' if is_kept else 'BROKEN':8}{name:16}{evidence}  ({took:.1f} s)")
    if n_failed:
        raise ModelError(f"{n_failed} of the properties do not hold on this machine; do not trust its results")
