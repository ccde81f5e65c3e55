"""The ``workload:`` section of a point becomes its spec: a model's sublayer or layer, a GEMM, a trace, a collective."""

from __future__ import annotations

import os
import re
from pathlib import Path

from t3sim.config.experiment import GemmShape, Kernels, LayerSpec, ModelSpec, TilingSpec, WorkloadSpec
from t3sim.config.presets import configs_root
from t3sim.config.trees import node_at
from t3sim.config.yaml_loader import Node, Position
from t3sim.errors import ConfigError, InputDataError
from t3sim.experiment.problems import Problems
from t3sim.experiment.schema import MAX_TP, WorkloadFile
from t3sim.registry import unknown_name
from t3sim.workload.kernel_choice import tiling_of
from t3sim.workload.layer import other_operators, sublayers_of
from t3sim.workload.models import NamedModel, named_model
from t3sim.workload.sublayers import SUBLAYERS, gemm_of

OF_A_MODEL = ("sublayer", "layer", "tokens")  # keys that say what of a model, and of what size
OF_A_LAYER = ("attention", "sequence")  # keys on which only a whole layer depends


class WorkloadReader:
    """Reads the workloads of one experiment; the first unreadable trace is kept as ``input_error``."""

    def __init__(self, problems: Problems, folder: Path, trace_root: Path | None) -> None:
        self.problems = problems
        self.input_error: InputDataError | None = None
        self._models: dict[tuple[str, str], NamedModel | None] = {}  # by the name as written and the file that names it
        self._traces: dict[str, tuple[Path, GemmShape, TilingSpec, int] | None] = {}  # by the name as written
        self._folder = folder
        self._trace_root = trace_root

    def read(
        self, tree: Node, given: WorkloadFile, kernels: Kernels | None, n_units: int | None
    ) -> WorkloadSpec | None:
        """The workload of a point, or None if it, its kernels or its machine have problems.

        *n_units*: compute units of the machine that the kernels run on.
        """
        sources = [name for name in ("model", "gemm", "trace", "collective") if getattr(given, name) is not None]
        if len(sources) != 1:
            found = " and ".join(f"`{name}`" for name in sources) or "none"
            self.problems.report(
                tree, ("workload",), f"needs exactly one of model, gemm, trace, collective; found {found}", at_key=True
            )
            return None
        source = sources[0]
        if not self._keys_belong(tree, given):
            return None
        if source == "trace":
            return self._trace(tree, given)
        if source == "collective":
            assert given.collective is not None
            if given.tp is not None and given.tp != given.collective.gpus:
                self.problems.report(
                    tree,
                    ("workload", "tp"),
                    f"is {given.tp}, but `workload.collective.gpus` is {given.collective.gpus}",
                )
                return None
            any_shape = GemmShape(m=1, n=1, k=1)  # every workload has a tiling; here it is of no effect
            tiling = _tiling_of(any_shape, kernels, n_units)
            if tiling is None:
                return None
            return WorkloadSpec(tp=given.collective.gpus, collective=given.collective, tiling=tiling)
        if given.tp is None:
            self.problems.report(tree, ("workload",), "`workload.tp` is missing: the number of GPUs", at_key=True)
            return None
        if source == "model":
            return self._of_model(tree, given, given.tp, kernels, n_units)
        assert given.gemm is not None
        tiling = _tiling_of(given.gemm, kernels, n_units)
        if tiling is None:
            return None
        return WorkloadSpec(tp=given.tp, gemm=given.gemm, tiling=tiling)

    def _keys_belong(self, tree: Node, given: WorkloadFile) -> bool:
        """Whether every key has the one it needs beside it; a key without is reported, not ignored."""
        is_fine = True
        for needed, names in (("model", OF_A_MODEL), ("layer", OF_A_LAYER)):
            for name in names:
                if getattr(given, name) is not None and getattr(given, needed) is None:
                    self.problems.report(tree, ("workload", name), f"needs `workload.{needed}`")
                    is_fine = False
        if given.sublayer is not None and given.layer is not None:
            self.problems.report(tree, ("workload", "layer"), "is all sublayers of a layer; remove `workload.sublayer`")
            is_fine = False
        return is_fine

    def _of_model(
        self, tree: Node, given: WorkloadFile, tp: int, kernels: Kernels | None, n_units: int | None
    ) -> WorkloadSpec | None:
        """A sublayer or a layer of a model; the sublayers of a layer have outputs of one size, so one kernel."""
        model = self._model(tree, given)
        if given.sublayer is None and given.layer is None:
            message = f"`workload.sublayer` is missing: one of {', '.join(SUBLAYERS)}, or `layer` instead"
            self.problems.report(tree, ("workload",), message, at_key=True)
            return None
        if given.sublayer is not None and given.sublayer not in SUBLAYERS:
            self.problems.report(tree, ("workload", "sublayer"), unknown_name("sublayer", given.sublayer, SUBLAYERS))
            return None
        if model is None:
            return None
        try:
            if given.sublayer is not None:
                gemm, layer = gemm_of(model, given.sublayer, tp), None
            else:
                layer = self._layer(tree, given, model, tp)
                gemm = None
        except ValueError as error:
            self.problems.report(tree, ("workload", "tp"), str(error))
            return None
        if gemm is None and layer is None:
            return None
        tiling = _tiling_of(gemm or gemm_of(model, SUBLAYERS[0], tp), kernels, n_units)
        if tiling is None:
            return None
        return WorkloadSpec(model=model.name, sublayer=given.sublayer, layer=layer, tp=tp, gemm=gemm, tiling=tiling)

    def _model(self, tree: Node, given: WorkloadFile) -> ModelSpec | None:
        """The model, with the tokens and the sequence of this workload."""
        node, _ = node_at(tree, ("workload", "model"))
        named = self._named(node)
        if named is None:
            return None
        if given.tokens is None and not named.states_tokens:
            message = f"`workload.tokens` is missing: `{given.model}` does not say how many there are"
            self.problems.report(tree, ("workload",), message, at_key=True)
            return None
        stated = {name: value for name in ("tokens", "sequence") if (value := getattr(given, name)) is not None}
        return named.spec.model_copy(update=stated)

    def _named(self, node: Node) -> NamedModel | None:
        """The model that *node* names; read once."""
        key = (str(node.value), node.position.file)
        if key not in self._models:
            try:
                self._models[key] = named_model(str(node.value), node.position, "workload.model", self._folder)
            except ConfigError as error:
                self._models[key] = None
                self.problems.take(error.problems)
        return self._models[key]

    def model_leaves(self, tree: Node) -> dict[str, Node]:
        """Where each hyperparameter of the point's model came from; empty if it names none."""
        node, is_whole = node_at(tree, ("workload", "model"))
        named = self._named(node) if is_whole and node.value is not None else None
        return {} if named is None else named.leaves

    def _layer(self, tree: Node, given: WorkloadFile, model: ModelSpec, tp: int) -> LayerSpec | None:
        """A whole layer; ValueError if it cannot be sliced."""
        assert given.layer is not None
        if model.heads is None:
            self.problems.report(tree, ("workload", "model"), f"`{model.name}` has no `heads`, which a layer needs")
            return None
        if model.sequence is None:
            message = f"`workload.sequence` is missing: `{model.name}` does not say how long a sequence is"
            self.problems.report(tree, ("workload",), message, at_key=True)
            return None
        if model.tokens % model.sequence:
            name = "tokens" if given.tokens is not None else "sequence"
            message = f"{model.tokens} tokens are not a whole number of sequences of {model.sequence}"
            self.problems.report(tree, ("workload", name), message)
            return None
        layer = LayerSpec(kind=given.layer, attention=given.attention or "unfused", model=model)
        for sublayer in sublayers_of(layer.kind):
            gemm_of(model, sublayer, tp)
        other_operators(layer, tp)
        return layer

    def _trace(self, tree: Node, given: WorkloadFile) -> WorkloadSpec | None:
        if tree.get("tiling") is not None:
            self.problems.report(tree, ("tiling",), "a trace brings its own tiling; remove `tiling`", at_key=True)
            return None
        written = str(given.trace)
        if written not in self._traces:
            self._traces[written] = self._read_trace(written, node_at(tree, ("workload", "trace"))[0].position)
        trace = self._traces[written]
        if trace is None:
            return None
        path, gemm, tiling, n_chunks = trace
        if n_chunks > MAX_TP:
            message = f"the trace has {n_chunks} chunks, one for each GPU; at most {MAX_TP} GPUs"
            self.problems.report(tree, ("workload", "trace"), message)
            return None
        if given.tp is not None and given.tp != n_chunks:
            self.problems.report(tree, ("workload", "tp"), f"is {given.tp}, but the trace has {n_chunks} chunks")
            return None
        return WorkloadSpec(tp=n_chunks, gemm=gemm, trace=str(path), tiling=tiling)

    def _read_trace(self, written: str, at: Position) -> tuple[Path, GemmShape, TilingSpec, int] | None:
        """Where a trace is and what it holds, if all of it is as it should be; its tiles are read again to be run."""
        from t3sim.workload.trace_file import read_trace

        try:
            path = self._trace_path(written)
            trace = read_trace(path)
        except InputDataError as error:
            self.input_error = self.input_error or InputDataError(f"{at}: workload.trace: `{written}`: {error}")
            return None
        return path, trace.gemm, trace.tiling, trace.n_chunks

    def _trace_path(self, written: str) -> Path:
        """Where the trace is: beside the experiment or among the shipped traces, never elsewhere."""
        if not written or "\\" in written or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", written):
            raise InputDataError("is not a relative path, like `traces/x.parquet`")
        shipped = configs_root().parent / "traces"
        roots = [self._trace_root] if self._trace_root else [self._folder, shipped]
        candidates = [root / written for root in roots]
        if not self._trace_root and written.startswith("traces/"):
            candidates.append(shipped.parent / written)
        real_roots = [Path(os.path.realpath(root)) for root in roots]
        inside = []
        has_escaped = False
        for candidate in candidates:
            real = Path(os.path.realpath(candidate))
            if any(real.is_relative_to(root) for root in real_roots):
                inside.append(real)
            else:
                has_escaped |= os.path.lexists(candidate) or os.path.exists(candidate.parent)  # noqa: PTH110
        if has_escaped or not inside:
            shown = " and ".join(str(root) for root in real_roots)
            raise InputDataError(f"is outside the trace root ({shown}); --trace-root names another")
        for real in inside:
            if os.path.exists(real):  # noqa: PTH110 - Path.exists raises for a name that is too long
                return real
        looked = " and at ".join(dict.fromkeys(str(real) for real in inside))
        raise InputDataError(f"no such file, looked for at {looked}")


def _tiling_of(gemm: GemmShape, kernels: Kernels | None, n_units: int | None) -> TilingSpec | None:
    """The tiling of *gemm*, or None where problems were found in what it depends on."""
    return None if kernels is None or n_units is None else tiling_of(kernels, gemm, n_units)


__all__ = ["WorkloadReader"]
