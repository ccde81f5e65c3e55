"""``t3sim list``: names for experiments and the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from textwrap import wrap

import click

from t3sim.cli._tables import GAP, WIDTH

INDENT = "  "


@click.command()
@click.argument("kind", required=False)
def list(kind: str | None) -> None:  # noqa: A001 - the name of the command
    """List the names that experiments and commands take, or only those of one KIND.

    KIND is experiments, machines, strategies, policies or models.
    """
    from t3sim.errors import UsageError
    from t3sim.registry import unknown_name

    kinds = {
        "experiments": _experiments, "machines": _machines, "strategies": _strategies, "policies": _policies,
        "models": _models,
    }  # fmt: skip
    if kind is not None:
        singular = {"machine": "machines", "experiment": "experiments", "model": "models", "strategy": "strategies",
                    "policy": "policies"}  # fmt: skip
        kind = singular.get(kind, kind)
    if kind is not None and kind not in kinds:
        raise UsageError(unknown_name("kind", kind, [*kinds]))
    for title, entries in kinds.items():
        if kind in (None, title):
            for line in (title, *_lines(dict(entries())), ""):
                click.echo(line)


def _lines(entries: dict[str, str]) -> Iterator[str]:
    """Yield names and what they represent, in two columns."""
    width = max(map(len, entries), default=0)
    for name, text in entries.items():
        lead = f"{INDENT}{name:{width}}{GAP}"
        wrapped = wrap(text, WIDTH - len(lead), break_on_hyphens=False)
        yield from (f"{' ' * len(lead) if i else lead}{line}" for i, line in enumerate(wrapped or [""]))


def _first_sentence(text: str | None) -> str:
    return " ".join((text or "").split()).partition(". ")[0].removesuffix(".")


def _experiments() -> Iterator[tuple[str, str]]:
    from t3sim.config.yaml_loader import load_yaml
    from t3sim.experiment.planning.shipped import shipped_experiments

    for name, path in shipped_experiments().items():
        yield name, _first_sentence(load_yaml(path).plain().get("description"))


def _machines() -> Iterator[tuple[str, str]]:
    from t3sim.config.presets import load_preset, preset_names

    for name in preset_names("machine"):
        yield name, _first_sentence(load_preset("machine", name).plain().get("description"))


def _strategies() -> Iterator[tuple[str, str]]:
    from t3sim.strategies import in_order

    entries = in_order()
    modules = [entry.plan.__module__ for entry in entries]
    for entry, module in zip(entries, modules, strict=True):
        # A file that registers one strategy says at its head what that is.
        text = entry.plan.__doc__ if modules.count(module) > 1 else sys.modules[module].__doc__
        needs = f"needs {entry.needs}" if entry.needs else entry.availability
        parameters = f"; parameters: {', '.join(entry.parameters)}" if entry.parameters else ""
        headline = _first_sentence((text or "").partition("\n")[0]).replace("``", "`")
        yield entry.name, f"{headline} [{', '.join(entry.operators)}; {needs}{parameters}]"


def _policies() -> Iterator[tuple[str, str]]:
    from t3sim.gpu.arbitration import arbitration_policies

    for name in sorted(arbitration_policies):
        policy = arbitration_policies.get(name)
        parameters = f" [parameters: {', '.join(policy.parameters)}]" if policy.parameters else ""
        yield name, _first_sentence(policy.pick_stream.__doc__) + parameters


def _models() -> Iterator[tuple[str, str]]:
    from t3sim.config.presets import load_preset, preset_names

    for name in preset_names("model"):
        model = load_preset("model", name).plain()
        degrees = ", ".join(map(str, model["tensor_parallel"]))
        yield name, f"hidden {model['hidden']}, {model['layers']} layers, {model['tokens']} tokens; TP {degrees}"
