"""Configuration trees: paths, overlays, problems, and conversion to specs.

The tree is kept with the spec, so that every value can be shown with its origin and place, and every error points at
the line that caused it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ValidationError
from pydantic.fields import FieldInfo

from t3sim import units
from t3sim.config.spec import Unit
from t3sim.config.yaml_loader import Node, Position, type_name
from t3sim.errors import ConfigError, Problem
from t3sim.registry import nearest

SpecT = TypeVar("SpecT", bound=BaseModel)
Made = TypeVar("Made")
KeyPath = tuple[str, ...]
Finding = tuple[str, str]  # dotted path below a section, message

MAX_GUESSES = 50  # of known keys in place of unknown ones; a guess takes milliseconds, and files may have thousands


def with_value(node: Node, path: KeyPath, value: Node) -> Node:
    """A copy of the tree in which *path* holds *value*; names of presets along the path become mappings."""
    if not path:
        return value
    if not isinstance(node.value, dict):
        content: dict[str, Node] = {} if node.value is None else {"preset": replace(node, key_position=None)}
    else:
        content = node.value
    child = content.get(path[0]) or Node(None, value.position, value.key_position or value.position)
    return replace(node, value={**content, path[0]: with_value(child, path[1:], value)})


def overlay(base: Node, over: Node) -> Node:
    """*over* on top of *base*: mappings are merged, everything else is replaced."""
    if not (base.is_mapping and over.is_mapping):
        return over
    merged = dict(base.value)
    for key, child in over.value.items():
        merged[key] = overlay(merged[key], child) if key in merged else child
    return replace(base, value=merged)


def node_at(root: Node, path: tuple[Any, ...]) -> tuple[Node, bool]:
    """The deepest node on *path* that exists, and whether it is the whole path."""
    node = root
    for step in path:
        value = node.value
        is_in_list = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if not is_in_list and not (node.is_mapping and step in value):
            return node, False
        node = value[step]
    return node, True


def placed(findings: Iterable[Finding], tree: Node, prefix: str) -> list[Problem]:
    """Findings of a check across fields as problems at the place of their first key."""
    return [
        node_at(tree, tuple(path.split(".")))[0].problem(f"{prefix}.{path}" if path else prefix, message)
        for path, message in findings
    ]


# --- problems -------------------------------------------------------------------------------------


class Problems(dict[Problem, None]):
    """What is wrong, collected while an experiment or a machine is read, so that all of it is shown at once.

    An ordered set: many points can have the same problem.
    """

    def __init__(self, own_file: str = "") -> None:
        super().__init__()
        self._own_file = own_file

    def report(self, root: Node, key: str, message: str, at_key: bool = False) -> None:
        """Add a problem of the value at the dotted *key*, at the deepest place of the tree that exists."""
        self.take([problem_at(root, key, message, at_key)])

    def add(self, at: Node | Position, key: str, message: str, at_key: bool = False) -> None:
        """Add a problem of a node, or at a place."""
        self.take([at.problem(key, message, at_key) if isinstance(at, Node) else at.problem(key, message)])

    def take(self, problems: Iterable[Problem]) -> None:
        """Add problems that were found elsewhere."""
        self.update(dict.fromkeys(problems))

    def caught(self, make: Callable[..., Made], *arguments: Any) -> Made | None:
        """Return what *make* makes; None if it raises a ``ConfigError``, whose problems are added."""
        try:
            return make(*arguments)
        except ConfigError as error:
            self.take(error.problems)
            return None

    def raise_any(self) -> None:
        """Raise all problems as one error, in the order in which they were found, if there are any."""
        if self:
            raise ConfigError(self)

    def in_reading_order(self) -> ConfigError:
        """All problems as one error, the experiment file first."""
        return ConfigError(sorted(self, key=lambda p: (p.file != self._own_file, p.file, p.line, p.column)))


def problem_at(root: Node, key: str, message: str, at_key: bool = False) -> Problem:
    """Return a problem of the value at the dotted *key*, at the deepest place of the tree that exists."""
    return node_at(root, tuple(key.split(".")))[0].problem(key, message, at_key)


def refusal(root: Node, key: str, message: str, at_key: bool = False) -> ConfigError:
    """Return the same as an error."""
    return ConfigError(problem_at(root, key, message, at_key))


# --- validation ----------------------------------------------------------------------------------


def validated(model: type[SpecT], node: Node, prefix: str) -> SpecT:
    """The spec that *node* describes; all its problems at once as a ConfigError."""
    try:
        return model.model_validate(node.plain())
    except ValidationError as error:
        raise ConfigError(spec_problems(error, model, node, prefix)) from None


def spec_problems(error: ValidationError, model: type[BaseModel], root: Node, prefix: str) -> list[Problem]:
    """Findings of pydantic as problems with their place in the file."""
    problems: dict[tuple[str, str], Problem] = {}
    # Of a number that may be a word instead, what is wrong with the number says enough.
    for item in sorted(error.errors(include_url=False), key=_is_number_for_word):
        location, key = item["loc"], prefix
        node = node_at(root, location)[0]
        is_about_key = item["type"] in ("missing", "extra_forbidden")
        while not is_about_key and not node_at(root, location)[1]:  # a branch of a union: report the value itself
            location = location[:-1]
        for step in location:
            key += f"[{step}]" if isinstance(step, int) else f".{step}" if key else str(step)
        if _is_number_for_word(item) and any(known == key for known, _ in problems):
            continue
        message = _message(dict(item), model, location, can_guess=len(problems) < MAX_GUESSES)
        problems.setdefault((key, message), node.problem(key, message, at_key=is_about_key))
    return list(problems.values())


def _is_number_for_word(item: Mapping[str, Any]) -> bool:
    """Whether a finding of pydantic is that a number is none of the words that may stand in its place."""
    return item["type"] == "literal_error" and not isinstance(item.get("input"), str)


def found_words(value: Any) -> str:
    """A value that is not what was needed, for a message."""
    if value is None:
        return "nothing"
    if isinstance(value, (dict, list)):
        return type_name(value)
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"`{text if len(text) <= 40 else text[:37] + '...'}`"


# What pydantic calls a value of the wrong type -> what is needed.
_NEEDED = {
    **dict.fromkeys(("int_type", "int_from_float", "int_parsing", "int_parsing_size"), "a whole number"),
    "float_type": "a number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "a text",
    **dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "a mapping"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def _message(item: dict[str, Any], model: type[BaseModel], location: tuple[Any, ...], can_guess: bool) -> str:
    """A finding of pydantic in the words of this package."""
    kind, context, found = item["type"], item.get("ctx", {}), found_words(item.get("input"))
    if kind == "missing":
        return "is missing" + _meaning(model, location)
    if kind == "extra_forbidden":
        known = list(fields_at(model, location[:-1]))
        return unknown_key(str(location[-1]), ".".join(map(str, location[:-1])), known, can_guess)
    if kind == "value_error":
        return str(context["error"])
    if kind in _NEEDED:
        needed = _NEEDED[kind]
        is_text = needed.endswith("number") and isinstance(item.get("input"), str)
        known = list(fields_at(model, location)) if needed == "a mapping" else []
        keys = f" with the keys {', '.join(known)}" if known else ""
        return f"found {'the text ' if is_text else ''}{found}, {needed} is needed{keys}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"found {found}, must be {words} {'2^62' if context[name] == units.LIMIT else context[name]}"
    if kind == "literal_error":
        known = [word.strip("' ") for word in str(context["expected"]).replace(" or ", ",").split(",")]
        guess = nearest(str(item.get("input")), known)
        return f"found {found}; allowed: {', '.join(known)}" + (f"; did you mean `{guess}`?" if guess else "")
    if kind in ("too_long", "too_short"):
        length = context.get("max_length", context.get("min_length"))
        return f"found {context.get('actual_length')} values, {length} are needed"
    return str(item["msg"])


def _meaning(model: type[BaseModel], location: tuple[Any, ...]) -> str:
    """What a missing key means, and its unit or an example, if its spec describes it."""
    field = fields_at(model, location[:-1]).get(str(location[-1]))
    if field is None or not field.description:
        return ""
    text = field.description.partition(". ")[0].rstrip(".")
    for extra in annotations_of(field):
        if isinstance(extra, BeforeValidator) and (example := units.example_of(extra.func)):
            text += f", like `{example}`"
        elif isinstance(extra, Unit):
            text += f" ({extra.name})"
    return f": {text[0].lower() if text[1:2].islower() else text[0]}{text[1:]}"


# Keys that do not exist, by section and name: computed from others, or names of earlier versions.
EXPLAINED = {
    ("queue", "write_turn"): "is called `writes_per_drain` now",
    ("queue", "turn_to_writes"): "is called `turnaround_to_writes` now",
    ("memory", "bandwidth"): "is computed: `n_channels` x `access` x `clock` / `timing.nCCDS`; change one of these",
}


def unknown_key(key: str, parent: str, known: list[str], can_guess: bool = True) -> str:
    """The message for a key that does not exist, with the nearest that does."""
    if (parent.rpartition(".")[2], key) in EXPLAINED:
        return f"`{key}` {EXPLAINED[parent.rpartition('.')[2], key]}"
    guess = nearest(key, known) if can_guess else None
    under = f" under `{parent}`" if parent else ""
    return f"unknown key `{key}`{under}; " + (f"did you mean `{guess}`?" if guess else f"known: {', '.join(known)}")


# --- fields of specs -----------------------------------------------------------------------------


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType):
        return next((found for part in get_args(annotation) if (found := _model_of(part))), None)
    return None


def fields_at(model: type[BaseModel] | None, location: tuple[Any, ...]) -> dict[str, FieldInfo]:
    """The fields of the spec at *location* below *model*, by name; none where there is no spec."""
    annotation: Any = model
    for step in location:
        if get_origin(annotation) is dict:  # specs by name
            annotation = get_args(annotation)[1]
            continue
        of = _model_of(annotation)
        field = of.model_fields.get(step) if of is not None else None
        annotation = None if field is None else field.annotation
    of = _model_of(annotation)
    return {} if of is None else of.model_fields


def paths_to(key: str, model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield the dotted path of every field called *key* below *model*, which is at *prefix*."""
    for name, field in model.model_fields.items():
        if name == key:
            yield f"{prefix}.{name}"
        inner = _model_of(field.annotation)
        if inner is not None:
            yield from paths_to(key, inner, f"{prefix}.{name}")


def value_at(spec: BaseModel, path: str) -> Any:
    """The value at a dotted path below *spec*; None below a section that is not there."""
    value: Any = spec
    for step in path.split("."):
        value = None if value is None else getattr(value, step)
    return value


def annotations_of(field: FieldInfo) -> tuple[Any, ...]:
    """What the type of a field is annotated with, the same of a type that may be None."""
    return (*field.metadata, *(x for part in get_args(field.annotation) for x in getattr(part, "__metadata__", ())))


def shown_value(model: type[BaseModel], location: KeyPath, value: Any) -> str:
    """A resolved value with its unit, in the shortest spelling that reads back as the same."""
    field = fields_at(model, location[:-1]).get(location[-1])
    if isinstance(value, int) and not isinstance(value, bool) and field is not None:
        for extra in annotations_of(field):
            if isinstance(extra, BeforeValidator):
                return units.format_parsed(extra.func, value)
    return shown_text(value)


def shown_text(value: Any) -> str:
    """A value that has no unit as YAML has it in one line."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown_text, value))}]"
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
