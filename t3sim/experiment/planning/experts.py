"""The ``workload.experts`` section of a point: a layer of routed experts, of a model or on its own."""

import hashlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from t3sim.config.experiment import ModelSpec
from t3sim.config.experts import ExpertsFields, ExpertsSpec, experts_findings
from t3sim.config.presets import folder_of
from t3sim.config.trees import Problems, node_at, overlay, placed, refusal, validated, with_value
from t3sim.config.yaml_loader import Node, Position
from t3sim.errors import InputDataError
from t3sim.experiment.planning.schema import MAX_TP, WorkloadFile
from t3sim.files import read_limited
from t3sim.workload.moe import experts_of, tokens_of_a_gpu
from t3sim.workload.routing_file import MAX_BYTES, read_routing

KEY = "workload.experts"


def read_experts(tree: Node, given: WorkloadFile, model: ModelSpec | None, folder: Path) -> ExpertsSpec:
    """Return the experts that a workload describes, its section on top of what *model* states.

    Raises ``ConfigError`` with all problems of the section, or ``InputDataError`` for a recorded routing that is not
    one of this layer.
    """
    node, is_whole = node_at(tree, ("workload", "experts"))
    at = node_at(tree, ("workload",))[0].position
    section = node if is_whole and node.value is not None else Node({}, at)
    if not section.is_mapping:
        raise refusal(tree, KEY, "a mapping is needed")
    full = section
    if model is not None:
        try:
            stated = experts_of(model)
        except ValueError as error:
            raise refusal(tree, "workload.model", str(error)) from None
        full = overlay(Node({name: Node(value, at) for name, value in stated.items()}, at), section)
    full = _with_gpus(tree, given, full, at)
    fields = validated(ExpertsFields, full, KEY)
    problems = Problems()
    problems.take(placed(experts_findings(fields), full, KEY))
    if given.tp is not None and given.tp != fields.ep * fields.tp:
        message = f"is {given.tp}, but `{KEY}.ep` x `{KEY}.tp` are {fields.ep * fields.tp} GPUs"
        problems.report(tree, "workload.tp", message)
    if fields.ep * fields.tp > MAX_TP:
        problems.report(tree, f"{KEY}.ep", f"is {fields.ep}: {fields.ep * fields.tp} GPUs, at most {MAX_TP}")
    problems.raise_any()
    spec = ExpertsSpec(**dict(fields))
    return spec if spec.routing.file is None else _with_file(spec, full, folder)


def _with_gpus(tree: Node, given: WorkloadFile, full: Node, at: Position) -> Node:
    """Return the section with `ep` from `workload.tp`, and the tokens of a GPU from `workload.tokens`."""
    known: dict[str, Any] = full.value
    tp = known["tp"].value if "tp" in known else 1
    if "ep" not in known:
        if given.tp is None and given.tokens is None and "experts" in tree.value["workload"].value:
            return full  # reported with the other keys that are missing
        if given.tp is None:
            message = f"`{KEY}.ep` is missing: the number of GPUs that share the experts"
            raise refusal(tree, KEY if "experts" in tree.value["workload"].value else "workload", message, at_key=True)
        if not isinstance(tp, int) or tp < 1 or given.tp % tp:
            raise refusal(tree, f"{KEY}.tp", f"is {tp}, which does not divide `workload.tp`, {given.tp}")
        full = with_value(full, ("ep",), Node(given.tp // tp, at))
    if given.tokens is not None:
        if "tokens_per_gpu" in known:
            message = f"is of all GPUs, and `{KEY}.tokens_per_gpu` of each; remove one of them"
            raise refusal(tree, "workload.tokens", message)
        ep = full.value["ep"].value
        if isinstance(ep, int) and isinstance(tp, int) and ep > 0 and tp > 0:
            each = tokens_of_a_gpu(given.tokens, ep * tp)
            full = with_value(full, ("tokens_per_gpu",), Node(each, at))
    return full


def _with_file(spec: ExpertsSpec, full: Node, folder: Path) -> ExpertsSpec:
    """Return *spec* with where its recorded routing is and its digest, once it has been read and checked."""
    node = node_at(full, ("routing", "file"))[0]
    path = Path(os.path.realpath(folder_of(node.position, folder) / str(spec.routing.file)))
    try:
        content = read_limited(path, MAX_BYTES, shown_as=str(path))
        digest = _checked(str(path), hashlib.sha256(content).hexdigest(), spec)
    except InputDataError as error:
        raise InputDataError(f"{node.position}: {KEY}.routing.file: {error}") from None
    routing = spec.routing.model_copy(update={"file": str(path), "digest": digest})
    return spec.model_copy(update={"routing": routing})


@lru_cache(16)
def _checked(path: str, digest: str, spec: ExpertsSpec) -> str:
    """Return *digest* once the file has been read as a routing of *spec*."""
    read_routing(path, spec)
    return digest
