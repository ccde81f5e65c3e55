"""Machines for tests, from the shipped presets."""

from __future__ import annotations

from typing import Any

from t3sim.config.machine import MachineSpec
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position

HERE = Position("test")


def machine(preset: str = "t3-150", **parts: Any) -> MachineSpec:
    """The machine *preset*; *parts* name other presets (``memory="hbm2-reference"``)."""
    content = {"preset": Node(preset, HERE), **{name: Node(value, HERE) for name, value in parts.items()}}
    return resolve_machine(Node(content, HERE)).spec
