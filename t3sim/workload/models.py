"""The transformers that a workload can name, as GEMM shapes.

Those of the T3 study (T3 table 2) live in ``configs/model``, one file each with sources; others come from a file of the
user, in the same form (``.yaml``) or as the ``config.json`` of a Hugging Face checkpoint.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from t3sim.config.experiment import AttentionKind, ModelSpec
from t3sim.config.presets import folder_of, load_preset, no_such_file, preset_names, without
from t3sim.config.trees import validated
from t3sim.config.yaml_loader import Node, Position
from t3sim.errors import ConfigError
from t3sim.registry import ADVICE
from t3sim.workload.hf_config import read_hf_config
from t3sim.workload.sublayers import TURNED_AROUND, lacks

HF_SUFFIX = ".json"


@dataclass(frozen=True)
class NamedModel:
    """A model, and where each of its hyperparameters came from.

    ``groups`` has a spec for each group of like layers; ``spec`` is the one with most layers that have attention.
    """

    spec: ModelSpec
    leaves: dict[str, Node]
    states_tokens: bool = True  # if not, ``spec.tokens`` is 1 until the workload says how many there are
    attention: AttentionKind = "unfused"  # of a layer whose workload does not say; checkpoints run fused today
    groups: tuple[ModelSpec, ...] = ()
    notes: tuple[str, ...] = ()  # sentences for the user who names it

    def with_sublayer(self, sublayer: str, group: int | None = None) -> ModelSpec:
        """Return the layers that have *sublayer*: of *group*, which counts from 1, or the largest group that has it.

        Raises ``ValueError`` if there is no such group.
        """
        if group is not None:
            if not 1 <= group <= len(self.groups or (self.spec,)):
                raise ValueError(f"is {group}; `{self.spec.name}` has {len(self.groups or (self.spec,))}")
            return (
                self.groups[group - 1].model_copy(update={"name": f"{self.spec.name}#{group}"})
                if self.groups
                else self.spec
            )
        having = [one for one in self.groups if lacks(one, TURNED_AROUND.get(sublayer, sublayer)) is None]
        return max(having, key=lambda one: one.layers, default=self.spec)


def named_model(
    name: str, named_at: Position | None = None, key: str = "workload.model", folder: Path | None = None
) -> NamedModel:
    """Return the model called *name*: a preset, in any case, or a file relative to the one that names it (or *folder*).

    A folder represents its ``config.json``.

    Raises ``ConfigError`` at the place that names it, or at the place in its file that is wrong.
    """
    if "://" in name:
        raise ConfigError((named_at or Position("")).problem(key, f"`{name}`: URLs are not fetched; {ADVICE['model']}"))
    if name not in preset_names("model") and os.path.isfile(folder_of(named_at, folder) / name / "config.json"):  # noqa: PTH113
        name = str(Path(name) / "config.json")  # the folder of a checkpoint
    if name.endswith(HF_SUFFIX):
        return _from_hf_config(name, named_at, key, folder)
    node = without(load_preset("model", name, named_at, key, folder), "description")
    if node.is_mapping and "name" not in node.value:
        node = replace(node, value={"name": Node(Path(node.position.file).stem, node.position), **node.value})
    leaves = {".".join(path): leaf for path, leaf in node.leaves()}
    return NamedModel(validated(ModelSpec, node, "model"), leaves)


def _from_hf_config(name: str, named_at: Position | None, key: str, folder: Path | None) -> NamedModel:
    path = folder_of(named_at, folder) / name
    try:
        model = read_hf_config(path, str(path))
    except ConfigError:
        if os.path.exists(path) or named_at is None:  # noqa: PTH110 - Path.exists raises for a name that is too long
            raise
        raise ConfigError(named_at.problem(key, no_such_file("model", name, path))) from None
    called = Path(name).parent.name if Path(name).name == "config.json" else Path(name).stem
    called = "".join(c if c.isprintable() else "_" for c in called) or "config"
    every = [ModelSpec(name=called, tokens=1, **fields) for fields in model.groups]
    with_attention = [one for one in every if "attention" in one.parts]
    spec = max(with_attention or every, key=lambda one: one.layers)
    fields = model.groups[every.index(spec)]
    place = Position(str(path))
    origins = {name: ("user", f"`{key}`") for name, key in model.sources.items() if fields.get(name) is not None}
    origins |= dict.fromkeys(("gated", "dropout", "whole_heads"), ("derived", "its model_type"))
    leaves = {name: Node(fields[name], place, None, *origin) for name, origin in origins.items()}
    groups = tuple(every) if len(every) > 1 else ()
    return NamedModel(spec, leaves, False, "fused", groups, tuple(model.notes))
