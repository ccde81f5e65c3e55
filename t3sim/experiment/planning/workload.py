"""The ``workload:`` section of a point becomes its spec: what of a model, a GEMM, experts, a trace, a collective."""

import os
import re
from pathlib import Path
from typing import Any

from t3sim.config.experiment import (
    GemmShape,
    KernelLibrarySpec,
    Kernels,
    LayerSpec,
    ModelSpec,
    OperatorKind,
    OperatorsSpec,
    TilingSpec,
    WorkloadSpec,
)
from t3sim.config.machine import MachineSpec
from t3sim.config.presets import shipped
from t3sim.config.resolve import resolve_operators
from t3sim.config.trees import Problems, node_at, refusal
from t3sim.config.yaml_loader import Node, Position
from t3sim.errors import ConfigError, InputDataError
from t3sim.experiment.planning.experts import read_experts
from t3sim.experiment.planning.schema import MAX_TP, WorkloadFile
from t3sim.registry import unknown_name
from t3sim.workload.kernel_choice import fitting_kernels, tiling_of, without_split
from t3sim.workload.layer import held_of, other_operators, sublayers_of, why_no_layer
from t3sim.workload.models import NamedModel, named_model
from t3sim.workload.moe import gemms_of, mean_rows
from t3sim.workload.simulated_types import in_type, on_machine, with_outputs
from t3sim.workload.sublayers import (
    EXPERTS,
    PHASES_OF,
    PROJECTIONS,
    SUBLAYERS,
    TURNED_AROUND,
    gemm_of,
    lacks,
    projections_of,
    sublayer_called,
)

ReadTrace = tuple[Path, GemmShape, TilingSpec, int]  # where it is, and what it holds but for the tiles
OF_A_MODEL = ("sublayer", "group", "layer", "tokens", "element", "output")  # what of a model
OF_A_LAYER = ("attention", "sequence", "context", "operators")  # keys on which only a whole layer depends
# Keys of one kind of layer, and what the others need instead.
OF_GENERATION, OF_OTHER_LAYERS = ("context",), ("sequence", "attention")


class CannotSliceError(ConfigError):
    """A workload of legal values that has no GEMM on that many GPUs, or not this one."""


class WorkloadReader:
    """Reads the workloads of one experiment; the first unreadable trace or routing is kept as ``input_error``."""

    def __init__(self, folder: Path, trace_root: Path | None) -> None:
        self.input_error: InputDataError | None = None
        self._models: dict[tuple[str, str], NamedModel | ConfigError] = {}  # by name and the file that names it
        self._traces: dict[str, ReadTrace | None] = {}  # by the name as written
        self._folder = folder
        self._trace_root = trace_root

    def read(
        self, tree: Node, given: WorkloadFile, kernels: Kernels | None, machine: MachineSpec | None
    ) -> WorkloadSpec | None:
        """The workload of a point, or None if its kernels or its machine have problems, or its trace or routing.

        *machine*: what the kernels run on; of a library, those that it can hold.  Raises ``ConfigError`` with its own
        problems.
        """
        if self._source(tree, given) == "trace":
            return self._trace(tree, given)
        try:
            parts, gemm = self._computed(tree, given, machine)
        except InputDataError as error:  # a recorded routing
            self.input_error = self.input_error or error
            return None
        if kernels is None or machine is None:
            return None
        kernels = fitting_kernels(kernels, machine)
        library = kernels if isinstance(kernels, KernelLibrarySpec) and "collective" not in parts else None
        common = without_split(kernels) if parts.get("layer") else kernels  # its sublayers have a k of their own each
        return WorkloadSpec(**parts, tiling=tiling_of(common, gemm, machine.gpu.n_compute_units), kernels=library)

    def _source(self, tree: Node, given: WorkloadFile) -> str:
        """The key that says what is simulated, if every key has the one that it needs: none is ignored."""
        every = ("model", "gemm", "trace", "collective", "experts")
        sources = [name for name in every if getattr(given, name) is not None]
        if sources == ["model", "experts"]:  # of the model, with values on top
            sources = ["model"]
        if len(sources) != 1:
            found = " and ".join(f"`{name}`" for name in sources) or "none"
            message = f"needs exactly one of model, gemm, trace, collective, experts; found {found}"
            raise refusal(tree, "workload", message, at_key=True)
        problems = Problems()
        for needed, names in (("model", OF_A_MODEL), ("layer", OF_A_LAYER)):
            for name in names if getattr(given, needed) is None else ():
                if name == "tokens" and given.experts is not None:
                    continue
                if getattr(given, name) is not None:
                    problems.report(tree, f"workload.{name}", f"needs `workload.{needed}`")
        if given.sublayer is not None and given.layer is not None:
            message = "is all sublayers of a layer; remove `workload.sublayer`"
            problems.report(tree, "workload.layer", message)
        operator = operator_of(given)
        if given.experts is not None and operator != "moe":
            message = f"is {operator}, but `workload.experts` is of `moe`; remove one of them"
            problems.report(tree, "workload.operator", message)
        if operator == "moe" and given.layer is not None:
            problems.report(tree, "workload.layer", "is of dense sublayers; routed experts are simulated on their own")
        if operator == "moe" and given.model is None and given.experts is None:
            problems.report(tree, "workload.operator", "is moe, which needs `workload.model` or `workload.experts`")
        is_generation = given.layer == "generation"
        for name in OF_OTHER_LAYERS if is_generation else OF_GENERATION:
            if given.layer is not None and getattr(given, name) is not None:
                message = f"is of no effect with `layer: {given.layer}`; remove it"
                problems.report(tree, f"workload.{name}", message)
        if is_generation and operator == "ag-gemm":
            message = "is of a GEMM; `layer: generation` takes `gemm-ar`, or `gemm-rs` with sequence parallelism"
            problems.report(tree, "workload.operator", message)
        for name in ("collective", "layer"):
            if given.operator is not None and getattr(given, name) is not None and not is_generation:
                message = f"is of a GEMM, and `workload.{name}` says itself what is done; remove one of them"
                problems.report(tree, "workload.operator", message)
        problems.raise_any()
        return sources[0]

    def _computed(
        self, tree: Node, given: WorkloadFile, machine: MachineSpec | None
    ) -> tuple[dict[str, Any], GemmShape]:
        """What a workload without a trace is made of, and the GEMM that its tiling is for."""
        if given.collective is not None:
            gpus = given.collective.gpus
            if given.tp not in (None, gpus):
                raise refusal(tree, "workload.tp", f"is {given.tp}, but `workload.collective.gpus` is {gpus}")
            any_shape = GemmShape(m=1, n=1, k=1)  # every workload has a tiling; here it is of no effect
            return {"tp": gpus, "collective": given.collective}, any_shape
        if operator_of(given) == "moe":
            return self._of_experts(tree, given, machine)
        if given.tp is None:
            raise refusal(tree, "workload", "`workload.tp` is missing: the number of GPUs", at_key=True)
        if given.gemm is not None:
            return {"tp": given.tp, "gemm": given.gemm, "operator": operator_of(given)}, given.gemm
        return self._of_model(tree, given, given.tp, machine)

    def _of_experts(
        self, tree: Node, given: WorkloadFile, machine: MachineSpec | None
    ) -> tuple[dict[str, Any], GemmShape]:
        """A layer of routed experts, and the GEMM of an expert with the mean number of rows."""
        model = None
        if given.model is not None:
            named = self._named(node_at(tree, ("workload", "model"))[0])
            if given.sublayer not in (None, EXPERTS):
                raise refusal(tree, "workload.sublayer", f"is {given.sublayer}; that of moe is {EXPERTS}")
            try:
                model = named.with_sublayer(EXPERTS, given.group)
            except ValueError as error:
                raise refusal(tree, "workload.group", f"{error} groups of layers") from None
            model = self._on_machine(model, given, machine)
        experts = read_experts(tree, given, model, self._folder)
        name = None if model is None else model.name
        parts = {"model": name, "sublayer": EXPERTS, "tp": experts.gpus, "operator": "moe", "experts": experts}
        return parts, gemms_of(experts, mean_rows(experts))[0]

    def _of_model(
        self, tree: Node, given: WorkloadFile, tp: int, machine: MachineSpec | None
    ) -> tuple[dict[str, Any], GemmShape]:
        """A sublayer or a layer of a model; the sublayers of a layer have outputs of one size, so one kernel."""
        problems, operator = Problems(), operator_of(given)
        if given.sublayer in PROJECTIONS:
            return self._projection(tree, given, tp, machine)
        known = list(PHASES_OF[operator])
        model = problems.caught(self._model, tree, given)
        if given.sublayer is None and given.layer is None:
            instead = ", or `layer` instead" if given.operator is None else ""
            message = f"`workload.sublayer` is missing: one of {', '.join(known)}{instead}"
            problems.report(tree, "workload", message, at_key=True)
        if given.sublayer is not None and given.sublayer not in known:
            of = [kind for kind, phases in PHASES_OF.items() if given.sublayer in phases]
            message = unknown_name("sublayer", given.sublayer, known)
            if meant := sublayer_called(given.sublayer):
                where = "" if meant in known else " of `operator: ag-gemm`"
                message = f"`{given.sublayer}` is called {meant} here{where} (known: {', '.join(known)})"
            if of:
                message = f"`{given.sublayer}` is of `operator: {of[0]}`; those of {operator} are {', '.join(known)}"
            problems.report(tree, "workload.sublayer", message)
        problems.raise_any()
        assert model is not None
        model = self._on_machine(model, given, machine)
        if given.sublayer is not None and (why_not := lacks(model, TURNED_AROUND.get(given.sublayer, given.sublayer))):
            at_group = f" of group {given.group}" if given.group is not None else ""
            message = f"{model.name} {given.sublayer}{at_group}: {why_not}"
            raise CannotSliceError(refusal(tree, "workload.sublayer", message).problems)
        try:
            layer = None if given.layer is None else self._layer(tree, given, model, tp)
            gemm = gemm_of(model, given.sublayer or SUBLAYERS[0], tp, operator)
        except ValueError as error:
            raise CannotSliceError(refusal(tree, "workload.tp", str(error)).problems) from None
        parts = {"model": model.name, "sublayer": given.sublayer, "layer": layer, "tp": tp, "operator": operator}
        return {**parts, "gemm": gemm if layer is None else None}, gemm

    def _projection(
        self, tree: Node, given: WorkloadFile, tp: int, machine: MachineSpec | None
    ) -> tuple[dict[str, Any], GemmShape]:
        """A GEMM of latent attention or of the shared experts: alone, or of all GPUs if its outputs are summed."""
        model = self._on_machine(self._model(tree, given), given, machine)
        assert given.sublayer is not None
        if why_not := lacks(model, given.sublayer):
            raise refusal(tree, "workload.sublayer", f"{model.name} {given.sublayer}: {why_not}")
        try:
            one = next(one for one in projections_of(model, tp) if one.name == given.sublayer)
        except ValueError as error:
            raise CannotSliceError(refusal(tree, "workload.tp", str(error)).problems) from None
        is_summed = one.split == "rows"
        if given.operator is not None and (not is_summed or given.operator not in ("gemm-rs", "gemm-ar")):
            what = "takes gemm-rs or gemm-ar" if is_summed else "has no collective; remove this key"
            raise refusal(tree, "workload.operator", f"is {given.operator}, but {given.sublayer} {what}")
        whole = {"tp": tp if is_summed else 1, "operator": operator_of(given)}
        return {"model": model.name, "sublayer": one.name, "gemm": one.gemm, **whole}, one.gemm

    def _on_machine(self, model: ModelSpec, given: WorkloadFile, machine: MachineSpec | None) -> ModelSpec:
        """*model* with the element types that are asked for, or that the machine runs it with."""
        if given.element is not None:
            model = in_type(model, given.element)
        elif machine is not None:
            model = on_machine(model, machine.gpu.compute_unit)
        return model if given.output is None else with_outputs(model, given.output)

    def _model(self, tree: Node, given: WorkloadFile) -> ModelSpec:
        """The model, with the tokens and the sequence of this workload."""
        named = self._named(node_at(tree, ("workload", "model"))[0])
        try:
            spec = named.with_sublayer(given.sublayer or SUBLAYERS[0], given.group)
        except ValueError as error:
            raise refusal(tree, "workload.group", f"{error} groups of layers") from None
        if given.tokens is None and not named.states_tokens:
            message = f"`workload.tokens` is missing: `{given.model}` does not say how many there are"
            raise refusal(tree, "workload", message, at_key=True)
        stated = {name: value for name in ("tokens", "sequence") if (value := getattr(given, name)) is not None}
        return spec.model_copy(update=stated)

    def _named(self, node: Node) -> NamedModel:
        """The model that *node* names; read once."""
        key = (str(node.value), node.position.file)
        if key not in self._models:
            try:
                self._models[key] = named_model(str(node.value), node.position, "workload.model", self._folder)
            except ConfigError as error:
                self._models[key] = error
        found = self._models[key]
        if isinstance(found, ConfigError):
            raise found
        return found

    def model_leaves(self, tree: Node) -> dict[str, Node]:
        """Where each hyperparameter of the point's model came from; empty if it names none."""
        node, is_whole = node_at(tree, ("workload", "model"))
        return self._named(node).leaves if is_whole and node.value is not None else {}

    @property
    def notes(self) -> tuple[str, ...]:
        """What has to be said of the models that were read, each once."""
        models = [one for one in self._models.values() if isinstance(one, NamedModel)]
        return tuple(dict.fromkeys(f"{one.spec.name}: {note}" for one in models for note in one.notes))

    def operators(self, tree: Node) -> tuple[OperatorsSpec, Node]:
        """How fast the other kernels of a layer are, and where each share came from."""
        node, is_whole = node_at(tree, ("workload", "operators"))
        given = node if is_whole and node.value is not None else None
        return resolve_operators(given, self._folder, "workload.operators")

    def _layer(self, tree: Node, given: WorkloadFile, model: ModelSpec, tp: int) -> LayerSpec:
        """A whole layer; ValueError if it cannot be sliced."""
        assert given.layer is not None
        if why_not := why_no_layer(model, given.layer):
            raise refusal(tree, "workload.model", why_not)
        operators, _ = self.operators(tree)
        if given.layer == "generation":
            if given.context is None:
                message = (
                    "`workload.context` is missing: tokens of each sequence whose keys and values are in the cache"
                )
                raise refusal(tree, "workload", message, at_key=True)
            named = self._named(node_at(tree, ("workload", "model"))[0])
            layer = LayerSpec(
                kind=given.layer, attention="fused", operators=operators, model=model, context=given.context,
                groups=named.groups or (model,),
            )  # fmt: skip
            other_operators(layer, tp)
            held_of(layer, tp)
            return layer
        if model.sequence is None:
            message = f"`workload.sequence` is missing: `{model.name}` does not say how long a sequence is"
            raise refusal(tree, "workload", message, at_key=True)
        if model.tokens % model.sequence:
            name = "tokens" if given.tokens is not None else "sequence"
            message = f"{model.tokens} tokens are not a whole number of sequences of {model.sequence}"
            raise refusal(tree, f"workload.{name}", message)
        usual = self._named(node_at(tree, ("workload", "model"))[0]).attention
        layer = LayerSpec(kind=given.layer, attention=given.attention or usual, operators=operators, model=model)
        for sublayer in sublayers_of(layer.kind):
            gemm_of(model, sublayer, tp)
        other_operators(layer, tp)
        return layer

    def _trace(self, tree: Node, given: WorkloadFile) -> WorkloadSpec | None:
        if tree.get("tiling") is not None:
            raise refusal(tree, "tiling", "a trace brings its own tiling; remove `tiling`", at_key=True)
        written = str(given.trace)
        if written not in self._traces:
            self._traces[written] = self._read_trace(written, node_at(tree, ("workload", "trace"))[0].position)
        trace = self._traces[written]
        if trace is None:
            return None
        path, gemm, tiling, n_chunks = trace
        if n_chunks > MAX_TP:
            message = f"the trace has {n_chunks} chunks, one for each GPU; at most {MAX_TP} GPUs"
            raise refusal(tree, "workload.trace", message)
        if given.tp is not None and given.tp != n_chunks:
            raise refusal(tree, "workload.tp", f"is {given.tp}, but the trace has {n_chunks} chunks")
        return WorkloadSpec(tp=n_chunks, gemm=gemm, operator=operator_of(given), trace=str(path), tiling=tiling)

    def _read_trace(self, written: str, at: Position) -> ReadTrace | None:
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
        """Path of the trace: next to the experiment or among the shipped traces, never elsewhere."""
        if not written or "\\" in written or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", written):
            raise InputDataError("is not a relative path, like `traces/x.parquet`")
        traces = shipped("traces")
        roots = [self._trace_root] if self._trace_root else [self._folder, traces]
        candidates = [root / written for root in roots]
        if not self._trace_root and written.startswith("traces/"):
            candidates.append(traces / written.removeprefix("traces/"))
        real_roots = [Path(os.path.realpath(root)) for root in roots]
        inside = []
        for candidate in candidates:
            real = Path(os.path.realpath(candidate))
            if any(real.is_relative_to(root) for root in real_roots):
                inside.append(real)
            elif os.path.lexists(candidate) or os.path.exists(candidate.parent):  # noqa: PTH110
                inside.clear()
                break
        if not inside:
            shown = " and ".join(str(root) for root in real_roots)
            raise InputDataError(f"is outside the trace root ({shown}); --trace-root names another")
        for real in inside:
            if os.path.exists(real):  # noqa: PTH110 - Path.exists raises for a name that is too long
                return real
        looked = " and at ".join(dict.fromkeys(str(real) for real in inside))
        raise InputDataError(f"no such file, looked for at {looked}")


def operator_of(given: WorkloadFile) -> OperatorKind:
    """What is done with the GEMM of a workload, or with those of its layer."""
    if given.operator is not None:
        return given.operator
    if given.experts is not None or given.sublayer == EXPERTS:
        return "moe"
    return "gemm-ar" if given.layer == "generation" else "gemm-rs"
