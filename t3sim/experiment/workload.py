"""The ``workload:`` section of a point: a model's sublayer, a GEMM, a tile trace or a collective becomes its spec."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from t3sim.config.experiment import GemmShape, TilingSpec, WorkloadSpec
from t3sim.config.presets import configs_root, load_model
from t3sim.config.resolve import node_at
from t3sim.config.yaml_loader import Node, Position
from t3sim.errors import ConfigError, InputDataError
from t3sim.experiment.problems import Problems
from t3sim.experiment.schema import MAX_TP, WorkloadFile
from t3sim.registry import unknown_name


class WorkloadReader:
    """Reads the workloads of one experiment; the first unreadable trace is kept as ``input_error``."""

    def __init__(self, problems: Problems, folder: Path, trace_root: Path | None) -> None:
        self.problems = problems
        self.input_error: InputDataError | None = None
        self._traces: dict[str, tuple[Path, GemmShape, TilingSpec, int] | None] = {}  # by the name as written
        self._folder = folder
        self._trace_root = trace_root

    def read(self, tree: Node, given: WorkloadFile, tiling: TilingSpec | None) -> WorkloadSpec | None:
        """The workload of a point, or None if it has problems or its tiling has."""
        sources = [name for name in ("model", "gemm", "trace", "collective") if getattr(given, name) is not None]
        if len(sources) != 1:
            found = " and ".join(f"`{name}`" for name in sources) or "none"
            self.problems.report(
                tree, ("workload",), f"needs exactly one of model, gemm, trace, collective; found {found}", at_key=True
            )
            return None
        source = sources[0]
        if source != "model" and given.sublayer is not None:
            self.problems.report(tree, ("workload", "sublayer"), "needs `workload.model`")
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
            if tiling is None:
                return None
            return WorkloadSpec(tp=given.collective.gpus, collective=given.collective, tiling=tiling)
        if given.tp is None:
            self.problems.report(tree, ("workload",), "`workload.tp` is missing: the number of GPUs", at_key=True)
            return None
        if source == "gemm":
            gemm, model, sublayer = given.gemm, None, None
        else:
            made = self._sublayer(tree, given, given.tp)
            if made is None:
                return None
            gemm, model, sublayer = made
        if tiling is None or gemm is None:
            return None
        return WorkloadSpec(model=model, sublayer=sublayer, tp=given.tp, gemm=gemm, tiling=tiling)

    def _sublayer(self, tree: Node, given: WorkloadFile, tp: int) -> tuple[GemmShape, str, str] | None:
        from t3sim.workload.sublayers import SUBLAYERS, gemm_of

        model = None
        try:
            model_node, _ = node_at(tree, ("workload", "model"))
            at = model_node.position
            place = at if at.line else Position(str(self._folder / "experiment"))
            model = load_model(str(given.model), place, "workload.model")
        except ConfigError as error:
            stand_in = str(self._folder / "experiment")
            self.problems.take(
                replace(p, file=model_node.position.file) if p.file == stand_in else p for p in error.problems
            )
        if given.sublayer is None:
            self.problems.report(
                tree, ("workload",), f"`workload.sublayer` is missing: one of {', '.join(SUBLAYERS)}", at_key=True
            )
            return None
        if given.sublayer not in SUBLAYERS:
            self.problems.report(tree, ("workload", "sublayer"), unknown_name("sublayer", given.sublayer, SUBLAYERS))
            return None
        if model is None:
            return None
        try:
            return gemm_of(model, given.sublayer, tp), model.name, given.sublayer
        except ValueError as error:
            self.problems.report(tree, ("workload", "tp"), str(error))
            return None

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


__all__ = ["WorkloadReader"]
