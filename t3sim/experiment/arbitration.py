"""The ``arbitration:`` block of an experiment, and which strategies use it.

``t3-mca`` is T3 with the policy ``mca``; ``t3`` is T3 with any other policy,
``round_robin`` unless the experiment names one.  So an ``arbitration:`` block
with the policy ``mca`` sets the parameters of ``t3-mca``, a block with another
policy is what ``t3`` uses, and the other strategies use none; a strategy of
the user's own takes any block.  A block that no strategy of the experiment
uses is an error, not ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from t3sim.config.experiment import STRATEGIES, ArbitrationSpec
from t3sim.config.yaml_loader import Node, Position, type_name
from t3sim.experiment.problems import Problems
from t3sim.registry import unknown_name
from t3sim.units import parse_cycles


class ArbitrationBlocks:
    """Reads the block of each point and remembers whether any point uses it."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self._used: set[str] = set()  # policies of blocks that some point uses
        self._given: dict[str, Position] = {}

    def of_point(
        self, tree: Node, strategy: str | None, strategies: set[str], known: Sequence[str]
    ) -> ArbitrationSpec | None:
        """The block as a spec, if *strategy* uses it; checked in any case.

        *strategies* are those of the whole experiment, *known* those that exist.
        """
        default = {"t3": ArbitrationSpec(policy="round_robin"), "t3-mca": ArbitrationSpec(policy="mca")}
        node = tree.get("arbitration")
        if node is None or node.value is None:
            return default.get(strategy or "")
        spec = self._parsed(node)
        if spec is None:
            return None
        users = set(known) - set(STRATEGIES) | {"t3-mca" if spec.policy == "mca" else "t3"}
        self._given.setdefault(spec.policy, node.position)
        if users & strategies:
            self._used.add(spec.policy)
        return spec if strategy in users else default.get(strategy or "")

    def _parsed(self, node: Node) -> ArbitrationSpec | None:
        policy_node: Node | None = node
        params: dict[str, Node] = {}
        if node.is_mapping:
            params = {key: child for key, child in node.value.items() if key not in ("policy", "params", "preset")}
            nested = node.get("params")
            if nested is not None and nested.is_mapping:
                params |= nested.value
            elif nested is not None and nested.value is not None:
                self.problems.add(
                    nested.position, "arbitration.params", f"found {type_name(nested.value)}, not a mapping"
                )
            policy_node = node.get("policy") or node.get("preset")
        if policy_node is None:
            self.problems.add(node.key_position or node.position, "arbitration.policy", "is missing")
            return None
        policy = policy_node.value
        if not isinstance(policy, str):
            self.problems.add(
                policy_node.position, "arbitration.policy", f"found {type_name(policy)}, a name is needed"
            )
            return None
        from t3sim.gpu.arbitration import arbitration_policies

        if policy not in arbitration_policies:
            message = unknown_name("arbitration policy", policy, arbitration_policies.names())
            self.problems.add(policy_node.position, "arbitration.policy", message)
            return None
        values: dict[str, Any] = {}
        known = arbitration_policies.get(policy).parameters
        is_legal = True
        for name, child in params.items():
            key = f"arbitration.{name}"
            if name not in known:
                message = unknown_name(f"parameter of policy `{policy}`", name, list(known))
                self.problems.add(child.key_position or child.position, key, message)
                is_legal = False
                continue
            try:
                values[name] = _parameter(child)
                known[name].encode(values[name])
            except ValueError as error:
                self.problems.add(child.position, key, str(error))
                is_legal = False
        return ArbitrationSpec(policy=policy, params=values) if is_legal else None

    def report_unused(self, strategies: set[str]) -> None:
        """A block that no strategy of the experiment uses is an error, not ignored."""
        for policy, at in self._given.items():
            if policy in self._used or not strategies & set(STRATEGIES):
                continue
            wanted = "t3-mca" if policy == "mca" else "t3"
            self.problems.add(
                at, "arbitration", f"policy `{policy}` is used by the strategy `{wanted}` only, which is not run"
            )


def arbitration_leaves(block: Node | None, spec: ArbitrationSpec) -> dict[str, Node]:
    """Dotted key -> node of every value of a policy; *block* is what the experiment says."""
    from t3sim.gpu.arbitration import arbitration_policies

    default = Position("default")
    found = {path[-1] if path else "policy": node for path, node in block.leaves()} if block is not None else {}
    policy = found.get("policy", found.get("preset"))
    if policy is None or policy.value != spec.policy:
        found = {"policy": Node(spec.policy, default, None, "default", "the strategy's own")}
    leaves = {"arbitration.policy": found.get("policy") or found["preset"]}
    for name, parameter in arbitration_policies.get(spec.policy).parameters.items():
        leaves[f"arbitration.{name}"] = found.get(name) or Node(parameter.default, default, None, "default")
    return leaves


def _parameter(node: Node) -> Any:
    """A policy's parameter as a plain value; ``1000 cycles`` is 1000."""
    value = node.plain()
    if isinstance(value, str) and re.match(r"\s*[-+.]?[0-9]", value):
        return parse_cycles(value)
    if isinstance(value, (dict, list)):
        raise ValueError(f"found {type_name(value)}, a number or a word is needed")
    return value


__all__ = ["ArbitrationBlocks", "arbitration_leaves"]
