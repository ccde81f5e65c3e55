"""The command line.  Nothing heavy is imported here: ``t3sim --help`` answers at once.

Each command lives in a module of its own, which is imported when the command is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from t3sim import __version__
from t3sim.cli._errors import ReaderGoneError, run_reporting_errors
from t3sim.companions import module_of
from t3sim.registry import unknown_name

COMMANDS = {  # each a function in the module of its name
    "run": "Simulate an experiment and write its results.",
    "advise": "Name the fastest overlap scheme for a model, and why.",
    "list": "List experiments, machines, strategies, policies, models.",
    "compare": "Show what differs between two results folders.",
    "plot": "Draw the figures of a results folder.",
    "report": "Write one HTML page about results folders.",
    "config": "Check or show what an experiment resolves to.",
    "validate": "Compare measurements of GPUs with simulations.",
    "selfcheck": "Check the simulator on this machine.",
    "workload": "Show the GEMMs of a model or an experiment.",
    "trace": "Make, import, show or check a tile trace.",
    "calibrate": "Fit a machine to measurements of GPUs.",
    "measure": "Measure the GPUs of this machine.",
}
LABORATORY = ("validate", "calibrate", "measure")  # the commands that are modules of t3lab.cli, not of t3sim.cli
PATH = click.Path(path_type=Path)  # of an option or an argument


class LazyGroup(click.Group):
    """A group that imports a command only to run it, and turns errors into messages and exit codes."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All commands, in the order of the table."""
        return [*COMMANDS]  # `list` is a command here, once it is imported

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        package = "t3lab" if cmd_name in LABORATORY else "t3sim"
        command: click.Command = getattr(module_of(f"{package}.cli.{cmd_name}", f"the command {cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name the nearest command if there is no such command."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(unknown_name("command", args[0], [*COMMANDS]), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the help of the commands from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([*COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; name a closed pipe before click turns it into a plain exit code."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError from error

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        *,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit with the code of what happened."""
        if not standalone_mode:
            return super().main(args, prog_name, standalone_mode=False, **extra)

        def call(arguments: list[str]) -> Any:
            return super(LazyGroup, self).main(arguments, prog_name or "t3sim", standalone_mode=False, **extra)

        raise SystemExit(run_reporting_errors(call, args))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="t3sim")
@click.option("--debug", is_flag=True, help="Show the traceback of an error (may appear anywhere).")
def main(debug: bool) -> None:
    """Simulate GPUs that overlap GEMMs with their collectives.

    Exit codes: 0 done, 2 bad configuration or usage, 3 bad input data, 4 broken model invariant or
    deadlock, 5 environment, 6 finished with failed points, 130 interrupted.
    """
