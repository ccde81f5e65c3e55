"""The exchangeable parts of an experiment, ``strategy:`` and ``arbitration:``: a name with parameters each.

Either is a name, or a mapping of a name and of parameters that the strategy or the policy declares.

- A parameter of another strategy or policy of the experiment has no effect on this one, so that a sweep can have both.
- A named policy goes to the strategies that take it; the others keep the policy that they declare.
- Parameters without a policy go to each declared policy that has them: ``arbitration: {threshold: 10}``.

A policy or a parameter that no strategy of the experiment uses is an error, not ignored.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from t3sim.config.trees import Problems
from t3sim.config.yaml_loader import Node, Position, type_name
from t3sim.errors import PluginError, home_of, is_of_a_user
from t3sim.experiment.planning.sweep import Axis
from t3sim.gpu.arbitration import arbitration_policies
from t3sim.registry import Parameter, present_name, unknown_name
from t3sim.spelling import spelled_as
from t3sim.strategies import OverlapStrategy, in_order, overlap_strategies
from t3sim.units import parse_cycles

STRATEGY, ARBITRATION = "strategy", "arbitration"
NAME_KEYS = {STRATEGY: "name", ARBITRATION: "policy"}
SHOWN_AS = {STRATEGY: STRATEGY, ARBITRATION: "arbitration.policy"}
KINDS = {STRATEGY: "strategy", ARBITRATION: "arbitration policy"}
PRESET = "preset"  # a plain name becomes `{preset: name}` where an override or an axis adds a parameter to it
DEFAULT = Position("default")


@dataclass(frozen=True)
class Choice:
    """What a point chose: a name, the parameters that it declares, those that are given, and where that is written."""

    key: str
    name: str
    parameters: Mapping[str, Parameter]
    params: dict[str, Any]
    name_node: Node
    nodes: Mapping[str, Node]

    def leaves(self) -> dict[str, Node]:
        """Return dotted key -> node of the name and of every parameter."""
        of_params = {
            f"{self.key}.{name}": self.nodes.get(name) or Node(parameter.default, DEFAULT, None, "default")
            for name, parameter in self.parameters.items()
        }
        return {SHOWN_AS[self.key]: self.name_node, **of_params}


class Decisions:
    """Reads the decisions of each point of an experiment."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self._known: list[str] = []  # strategies
        self._policies: list[str] = []  # that the experiment names
        self._run: list[OverlapStrategy] = []  # of the whole experiment, also those that an override pinned away

    def note_experiment(self, root: Node, axes: Iterable[Axis], *, has_plugins: bool) -> None:
        """Note which strategies there are, and which of them the experiment runs."""
        self._known = [entry.name for entry in in_order() if has_plugins or not is_of_a_user(home_of(entry.plan)[0])]
        axes = list(axes)
        strategies = [spelled_as(name, self._known) for name in _named(root, axes, STRATEGY)]
        policies = arbitration_policies.names()
        self._run = [overlap_strategies.get(name) for name in strategies if name in self._known]
        self._policies = [spelled_as(name, policies) for name in _named(root, axes, ARBITRATION)]
        self._policies = [name for name in self._policies if name in policies]

    def strategy(self, tree: Node) -> Choice | None:
        """Return the strategy of a point, or None if it has problems."""
        node = tree.get(STRATEGY)
        if node is None:
            self.problems.add(tree, STRATEGY, "is missing")
            return None
        named, params = self._read(node, STRATEGY)
        if named is None:
            self.problems.add(node, "strategy.name", "is missing", at_key=True)
            return None
        name = self._name(named, STRATEGY, self._known)
        if name is None:
            return None
        chosen = overlap_strategies.get(name)
        for_others = {other for entry in self._run for other in entry.parameters} - set(chosen.parameters)
        own = {key: child for key, child in params.items() if key not in for_others}
        return self._choice(STRATEGY, name, chosen.parameters, own, named, tree)

    def arbitration(self, tree: Node, strategy: str | None) -> Choice | None:
        """Return the policy of a point's *strategy*, None if it has none; what is given is checked in any case."""
        chosen = None if strategy is None else overlap_strategies.get(strategy)
        node = tree.get(ARBITRATION)
        named, params = (None, {}) if node is None or node.value is None else self._read(node, ARBITRATION)
        if named is not None:
            policy = self._name(named, ARBITRATION, arbitration_policies.names())
            if policy is None:
                return None
            self._refuse_unused(policy, named)
            declared = arbitration_policies.get(policy).parameters
            for_others = {name for other in self._policies for name in arbitration_policies.get(other).parameters}
            own = {key: child for key, child in params.items() if key in declared or key not in for_others}
            choice = self._choice(ARBITRATION, policy, declared, own, named, tree)
            if choice is None or (chosen is not None and chosen.takes(policy)):
                return choice
        elif node is not None and node.is_mapping and not params:
            self.problems.add(node, "arbitration.policy", "is missing", at_key=True)
            return None
        else:
            own_policies = [entry.arbitration for entry in self._run if entry.arbitration in arbitration_policies]
            used = {name for own in own_policies if own for name in arbitration_policies.get(own).parameters}
            for name, child in params.items():
                if self._run and name not in used:
                    message = f"no strategy of the experiment declares a policy with the parameter `{name}`"
                    every = {
                        one for policy in arbitration_policies for one in arbitration_policies.get(policy).parameters
                    }
                    if name not in every:
                        message = unknown_name("parameter of an arbitration policy", name, sorted(used or every))
                    self.problems.add(child, f"arbitration.{name}", message, at_key=True)
        if chosen is None or chosen.arbitration is None:
            return None
        if chosen.arbitration not in arbitration_policies:
            unknown = unknown_name("arbitration policy", chosen.arbitration, arbitration_policies.names())
            raise PluginError(*home_of(chosen.plan), f"strategy `{chosen.name}`: {unknown}")
        declared = arbitration_policies.get(chosen.arbitration).parameters
        own = {} if named is not None else {name: child for name, child in params.items() if name in declared}
        by_itself = Node(chosen.arbitration, DEFAULT, None, "default", "the strategy's own")
        return self._choice(ARBITRATION, chosen.arbitration, declared, own, by_itself, tree)

    def _refuse_unused(self, policy: str, node: Node) -> None:
        """Report a policy that no strategy of the experiment takes."""
        if not self._run or any(entry.takes(policy) for entry in self._run):
            return
        users = [f"`{name}`" for name in self._known if overlap_strategies.get(name).takes(policy)]
        listed = " and ".join(part for part in (", ".join(users[:-1]), *users[-1:]) if part)
        one = f"the strategy {listed} only, which is" if len(users) == 1 else f"the strategies {listed} only, which are"
        self.problems.add(node, ARBITRATION, f"policy `{policy}` is used by {one} not run")

    def _read(self, node: Node, key: str) -> tuple[Node | None, dict[str, Node]]:
        nested = node.get("params") if node.is_mapping else None
        if nested is not None and not nested.is_mapping and nested.value is not None:
            self.problems.add(nested, f"{key}.params", f"found {type_name(nested.value)}, not a mapping")
        return _parts(node, key)

    def _name(self, node: Node, key: str, known: list[str]) -> str | None:
        """The name that *node* gives, if it is one of *known*."""
        if not isinstance(node.value, str):
            self.problems.add(node, SHOWN_AS[key], f"found {type_name(node.value)}, a name is needed")
        elif (name := spelled_as(node.value, known)) not in known:
            self.problems.add(node, SHOWN_AS[key], unknown_name(KINDS[key], node.value, known))
        else:
            return name
        return None

    def _choice(
        self, key: str, name: str, declared: Mapping[str, Parameter], params: Mapping[str, Node], at: Node, tree: Node
    ) -> Choice | None:
        """The choice of *name*, written *at* a node, with its parameters checked; None if one of them is wrong."""
        before = len(self.problems)
        values: dict[str, Any] = {}
        for parameter, child in params.items():
            shown = f"{key}.{parameter}"
            if parameter not in declared:
                message = unknown_name(f"parameter of {KINDS[key].split()[-1]} `{name}`", parameter, list(declared))
                if now := present_name(parameter, declared):
                    message = f"is called `{now}` now"
                self.problems.add(child, shown, message, at_key=True)
                continue
            try:
                values[parameter] = _value(child, declared[parameter])
                declared[parameter].encode(values[parameter])
            except ValueError as error:
                self.problems.add(child, shown, str(error))
        given = {present_name(parameter, declared) or parameter for parameter in params}
        for parameter, declaration in declared.items():
            if declaration.default is None and parameter not in given:
                self.problems.report(tree, key, f"`{name}` needs `{key}.{parameter}`")
        if len(self.problems) > before:
            return None
        return Choice(key, name, declared, values, at, params)


def _named(root: Node, axes: Iterable[Axis], key: str) -> list[str]:
    """Return the names that an experiment and its axes give for a decision, each once."""
    keys = (key, f"{key}.{NAME_KEYS[key]}")
    written = [node for axis in axes if axis.key in keys for node in axis.values]
    nodes = [_parts(node, key)[0] for node in filter(None, (*written, root.get(key)))]
    return list(dict.fromkeys(str(node.value) for node in nodes if node is not None))


def _parts(node: Node, key: str) -> tuple[Node | None, dict[str, Node]]:
    """Name and parameters of a decision as it is written; the parameters may stand under ``params``."""
    if not node.is_mapping:
        return node, {}
    name_keys = (NAME_KEYS[key], PRESET)
    params = {name: child for name, child in node.value.items() if name not in (*name_keys, "params")}
    nested = node.get("params")
    if nested is not None and nested.is_mapping:
        params |= nested.value
    return node.get(name_keys[0]) or node.get(PRESET), params


def _value(node: Node, parameter: Parameter) -> Any:
    """A parameter as a plain value; ``1000 cycles`` is 1000 if that is its unit."""
    value = node.plain()
    if parameter.unit == "cycles" and isinstance(value, str) and re.match(r"\s*[-+.]?[0-9]", value):
        return parse_cycles(value)
    if isinstance(value, (dict, list)):
        raise ValueError(f"found {type_name(value)}, a number or a word is needed")
    return value
