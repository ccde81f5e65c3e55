"""The transformers that a workload can name, as GEMM shapes.

Those of the T3 study (T3 table 2) live in ``configs/model``, one file each with sources; others come from a file of the
user, in the same form (``.yaml``) or as the ``config.json`` of a Hugging Face checkpoint.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from t3sim.config.experiment import AttentionKind, ModelSpec
from t3sim.config.presets import folder_of, load_preset, without
from t3sim.config.trees import validated
from t3sim.config.yaml_loader import Node, Position
from t3sim.errors import ConfigError
from t3sim.workload.hf_config import read_hf_config

HF_SUFFIX = ".json"


@dataclass(frozen=True)
class NamedModel:
    """A model, and where each of its hyperparameters came from."""

    spec: ModelSpec
    leaves: dict[str, Node]
    states_tokens: bool = True  # if not, ``spec.tokens`` is 1 until the workload says how many there are
    attention: AttentionKind = "unfused"  # of a layer whose workload does not say; checkpoints run fused today


def named_model(
    name: str, named_at: Position | None = None, key: str = "workload.model", folder: Path | None = None
) -> NamedModel:
    """Return the model called *name*: a preset, in any case, or a file relative to the one that names it (or *folder*).

    Raises ``ConfigError`` at the place that names it, or at the place in its file that is wrong.
    """
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
        fields, sources = read_hf_config(path, str(path))
    except ConfigError:
        if os.path.exists(path) or named_at is None:  # noqa: PTH110 - Path.exists raises for a name that is too long
            raise
        raise ConfigError(named_at.problem(key, f"no such file `{name}`, looked for at {path}")) from None
    called = Path(name).parent.name if Path(name).name == "config.json" else Path(name).stem
    called = "".join(c if c.isprintable() else "_" for c in called) or "config"
    spec = ModelSpec(name=called, tokens=1, tensor_parallel=(), **fields)
    place = Position(str(path))
    origins = {field: ("user", f"`{source}`") for field, source in sources.items()}
    origins |= dict.fromkeys(("gated", "dropout", "whole_heads"), ("derived", "its model_type"))
    leaves = {field: Node(fields[field], place, None, *origin) for field, origin in origins.items()}
    return NamedModel(spec, leaves, states_tokens=False, attention="fused")
