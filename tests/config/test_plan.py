"""Experiment files: points, overrides, and the messages for bad ones."""

import re

import pytest

from t3sim.errors import ConfigError
from t3sim.experiment.planning.plan import load_experiment
from t3sim.experiment.planning.schema import experiment_schema

BASE = """name: base
machine: t3-150
workload: {model: T-NLG, sublayer: FC-2, tp: 8}
strategy: t3
"""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def load(text=BASE, *overrides):
        (tmp_path / "e.yaml").write_text(text)
        return load_experiment("e.yaml", overrides)

    return load


@pytest.fixture
def problems(plan):
    def found(text=BASE, *overrides):
        with pytest.raises(ConfigError) as error:
            plan(text, *overrides)
        return str(error.value).splitlines()

    return found


def test_shipped_experiments(repository):
    for name, n_points in (("t3-tnlg-fc2", 6), ("t3-sublayers", 80)):
        experiment = load_experiment(repository / "experiments" / name / "experiment.yaml")
        assert (experiment.name, len(experiment.points)) == (name, n_points)


def test_points_come_in_file_order_with_the_last_axis_fastest(plan):
    experiment = plan(BASE + "sweep: {grid: {workload.tp: [8, 16], strategy: [t3-mca, sequential]}}")
    assert [(p.workload.tp, p.strategy) for p in experiment.points] == [
        (8, "t3-mca"),
        (8, "sequential"),
        (16, "t3-mca"),
        (16, "sequential"),
    ]


class TestOverrides:
    def test_a_swept_key_is_pinned(self, plan):
        experiment = plan(BASE + "sweep: {grid: {workload.tp: [8, 16], strategy: [t3, t3-mca]}}", "workload.tp=4")
        assert [(p.workload.tp, p.strategy) for p in experiment.points] == [(4, "t3"), (4, "t3-mca")]

    def test_an_axis_can_be_replaced(self, plan):
        experiment = plan(BASE, "sweep.grid.workload.tp=[2, 4]")
        assert [p.workload.tp for p in experiment.points] == [2, 4]

    def test_a_value_of_the_machine_stays_on_top_of_a_swept_machine(self, plan):
        experiment = plan(BASE + "sweep: {grid: {machine: [t3-150, t3-75]}}", "machine.link.latency=1 us")
        assert [p.machine.link.latency for p in experiment.points] == [10**6, 10**6]
        assert [p.machine.name for p in experiment.points] == ["t3-150+link.latency=1us", "t3-75+link.latency=1us"]

    def test_provenance_names_the_override(self, plan):
        provenance = plan(BASE, "machine.link.bandwidth=100 GB/s").provenance[0]
        assert str(provenance["machine.link.bandwidth"].position) == "-s machine.link.bandwidth=100 GB/s"
        assert str(provenance["workload.tp"].position) == "e.yaml:3:46"
        assert provenance["machine.gpu.l2.capacity"].source == "T3 Table 1"
        assert provenance["workload.gemm.k"].origin == "derived"

    @pytest.mark.parametrize(
        ("override", "expected"),
        [
            ("workload.tp", "-s workload.tp: an override is written key=value, like `-s workload.tp=8`"),
            ("workload.tp=", "-s workload.tp=: workload.tp: has no value"),
            (
                "machine.link.bandwith=1 GB/s",
                (
                    "-s machine.link.bandwith=1 GB/s: machine.link.bandwith: "
                    "unknown key `bandwith` under `link`; did you mean `bandwidth`?"
                ),
            ),
            (
                "machine.link.latency=500",
                ("-s machine.link.latency=500: machine.link.latency: 500 has no unit; did you mean `500 ns`?"),
            ),
            ("strategy.x=1", "-s strategy.x=1: strategy.x: unknown parameter of strategy `t3` `x` (known: none)"),
            ("name.x=1", "-s name.x=1: name.x: `name` is a text, it has no keys"),
            ("machine=t3-15", "-s machine=t3-15: machine: unknown machine `t3-15`; did you mean `t3-150`?"),
            (
                "mode=017",
                (
                    "-s mode=017: mode: `017` has a leading zero: YAML 1.1 would read it as octal, 15; "
                    "write it in decimal or in quotes"
                ),
            ),
        ],
    )
    def test_bad_ones(self, problems, override, expected):
        assert problems(BASE, override) == [expected]


class TestArbitration:
    @pytest.mark.parametrize(
        ("strategy", "policy"),
        [("t3", "round_robin"), ("t3-mca", "mca"), ("sequential", None), ("ideal-overlap", None)],
    )
    def test_defaults(self, plan, strategy, policy):
        arbitration = plan(BASE, f"strategy={strategy}").points[0].arbitration
        assert (arbitration and arbitration.policy) == policy

    BLOCK = "{policy: mca, threshold: auto, starvation_limit: 1000 cycles}"

    def test_parameters_of_mca_go_to_t3_mca_only(self, plan):
        text = BASE + f"arbitration: {self.BLOCK}\nsweep: {{grid: {{strategy: [t3, t3-mca]}}}}"
        round_robin, mca = (point.arbitration for point in plan(text).points)
        assert (round_robin.policy, round_robin.params) == ("round_robin", {})
        assert (mca.policy, mca.params) == ("mca", {"threshold": "auto", "starvation_limit": 1000})
        assert plan(text, "strategy=t3").points[0].arbitration == round_robin

    def test_parameters_may_stand_under_params(self, plan):
        nested = plan(BASE, "strategy=t3-mca", "arbitration={policy: mca, params: {threshold: 10}}").points[0]
        assert nested.arbitration.params == {"threshold": 10}

    def test_points_that_come_out_equal_are_kept_once(self, plan):
        experiment = plan(
            BASE + "arbitration: {policy: mca}\n"
            "sweep: {grid: {arbitration.threshold: [5, 10, none], strategy: [sequential, t3-mca]}}"
        )
        assert (len(experiment.points), experiment.n_duplicates) == (4, 2)

    @pytest.mark.parametrize(
        ("block", "expected"),
        [
            (
                "{policy: mca}",
                "`mca` is used by the strategies `cu-split`, `t3-mca`,",
            ),
            ("mcaa", "unknown arbitration policy `mcaa`; did you mean `mca`?"),
            ("{policy: mca, treshold: 5}", "unknown parameter of policy `mca` `treshold`; did you mean `threshold`?"),
            ("{policy: mca, threshold: soon}", "'soon' is not a whole number of at least 1 or auto or none"),
            ("{threshold: 5}", "no strategy of the experiment declares a policy with the parameter `threshold`"),
            ("{}", "arbitration.policy: is missing"),
        ],
    )
    def test_bad_blocks(self, problems, block, expected):
        assert any(expected in line for line in problems(BASE + f"arbitration: {block}\n"))

    def test_a_policy_of_the_user(self, plan, problems, tmp_path):
        (tmp_path / "mine.py").write_text(
            "from t3sim.plugins import Parameter, policy\n"
            '@policy("test_mine", {"limit": Parameter(3)})\n'
            "def pick_stream(channel, now):\n    return 0\n"
        )
        text = BASE + "plugins: [mine.py]\narbitration: {policy: test_mine, limit: 7}\n"
        run = plan(text).points[0]
        assert run.arbitration.params == {"limit": 7}
        assert run.plugins == (str(tmp_path / "mine.py"),)
        assert "plugins: no Python file `no.py`" in problems(BASE + "plugins: [no.py]\n")[0]


def test_a_strategy_of_the_user(plan, tmp_path):
    (tmp_path / "study.py").write_text(
        "from t3sim.plugins import Plan, gemm_part, strategy\n"
        '@strategy("test_study", arbitration="round_robin")\n'
        "def study(op, params):\n    return Plan(gemm_part(op))\n"
    )
    run = plan(BASE + "plugins: [study.py]\narbitration: mca\n", "strategy=test_study").points[0]
    assert (run.strategy, run.arbitration.policy) == ("test_study", "mca")


BAD_VALUES = [
    ("workload.tp=2.5", "workload.tp: needed"),
    ("workload.tp=3", "workload.tp: 2"),
    ("workload={gemm: {m: 64, n: 64, k: 8}, tp: 8}", "workload.tp: 1"),
    ("workload={gemm: {m: 1048576, n: 1048576, k: 8}, tp: 8}", "workload.gemm: output"),
    ("workload={gemm: {m: 2000000, n: 200000, k: 200000}, tp: 8}", "workload.gemm: 12211719"),
    ("workload={tp: 8}", "workload: collective"),
    ("workload={model: T-NLG, gemm: {m: 1, n: 1, k: 1}, tp: 8}", "workload: collective"),
    ("workload={model: T-NLG, tp: 8}", "workload: `workload.sublayer`"),
    ("workload={model: T-NLG, sublayer: FC-2}", "workload: `workload.tp`"),
    ("workload.model=TNLH", "workload.model: `T-NLG`"),
    ("workload.sublayer=FC-3", "workload.sublayer: `FC-2`"),
    ("workload={collective: {op: reduce-scatter, size: 96 MiB, gpus: 4}}", "strategy: `t3`"),
    ("workload={collective: {op: reduce-scatter, size: 96 MB, gpus: 4}}", "workload.collective.size: `96 MiB`"),
    ("strategy=t3mcb", "strategy: `t3-mca`"),
    ("mode=mirored", "mode: `mirrored`"),
    ("mode=explicit", None),
    ("staggered=0", "staggered: needed"),
    ("tiling.k_slice=128", "tiling.workgroup_tile: `machine.gpu.compute_unit.lds`"),
    ("tiling={workgroup_tile: [256, 256], wavefront_tile: [128, 64]}", None),
    ("tiling.wavefront_tile=[48, 64]", "tiling.wavefront_tile: `workgroup_tile`"),
    ("tiling.wavefront_tile=[32, 64]", "tiling.workgroup_tile: 256"),
    (
        "tiling={workgroup_tile: [512, 256], wavefront_tile: [128, 128]}",
        "tiling.workgroup_tile: `machine.gpu.compute_unit.registers`",
    ),
    ("tiling.k_slice=32", "tiling.k_slice: 128"),
    ("tiling.wavefront_tile=[128, 32]", "tiling.wavefront_tile: 64"),
    ("tiling.prefetch_depth=16", "tiling.prefetch_depth: 15"),
    ("tiling.epilogue=1048577 cycles", "tiling.epilogue: 1048576"),
    ("tiling.prologue=1001 ms", "tiling.prologue: most"),
    ("machine.gpu.tracker.entries_per_set=4", "machine.gpu.tracker.entries_per_set: 8"),
    ("quantum=1 ns", "quantum: `machine.gpu.issue_slot`"),
    ("sweep.grid.workload.tp=[]", "sweep.grid.workload.tp: needed"),
    ("sweep.grid.name=[a]", "sweep.grid.name: cannot"),
]


@pytest.mark.parametrize(("override", "expected"), BAD_VALUES)
def test_values_out_of_range(plan, problems, override, expected):
    if expected is None:
        assert len(plan(BASE, override).points) == 1
        return
    key, word = expected.split(": ")
    assert any(f": {key}: " in line and word in line for line in problems(BASE, override))


def test_a_default_may_be_more_than_a_machine_has(plan, problems):
    """16 units for communication, of 4; canary: 3 are taken."""
    tiny = "name: e\nmachine: t3-tiny\nworkload: {gemm: {m: 256, n: 256, k: 64}, tp: 2}\nstrategy: wave-groups\n"
    [line] = problems(tiny)
    assert line.startswith("e.yaml:4:11: strategy.communication_units: is 16 ")
    assert len(plan(tiny, "strategy.communication_units=3").points) == 1


UNFUSED = "workload.attention=unfused"


class TestLayers:
    LAYER = BASE.replace("sublayer: FC-2", "layer: training")

    def test_what_a_layer_is_made_of(self, plan):
        workload = plan(self.LAYER, "workload.attention=fused").points[0].workload
        assert (workload.model, workload.sublayer, workload.gemm) == ("T-NLG", None, None)
        assert (workload.layer.kind, workload.layer.attention, workload.layer.model.heads) == ("training", "fused", 28)

    def test_tokens_and_sequence_replace_those_of_the_model(self, plan):
        model = plan(self.LAYER, "workload.tokens=4096", "workload.sequence=512").points[0].workload.layer.model
        assert (model.tokens, model.sequence) == (4096, 512)
        assert plan(BASE, "workload.tokens=4096").points[0].workload.gemm.m == 4096

    def test_provenance_of_a_model(self, plan):
        provenance = plan(self.LAYER, "workload.tokens=4096").provenance[0]
        assert provenance["workload.model.heads"].value == 28
        assert provenance["workload.model.heads"].origin == "paper"
        assert provenance["workload.model.sequence"].origin == "assumed"
        assert provenance["workload.attention"].origin == "default"
        assert str(provenance["workload.tokens"].position) == "-s workload.tokens=4096"
        assert "workload.model.tokens" not in provenance

    def test_shares_of_other_kernels(self, plan, tmp_path):
        provenance = plan(self.LAYER, "workload.operators.norm=0.8").provenance[0]
        norm = provenance["workload.operators.norm"]
        assert (norm.value, str(norm.position)) == (0.8, "-s workload.operators.norm=0.8")
        assert provenance["workload.operators.softmax"].origin == "derived"
        names = ("elementwise", "norm", "softmax", "fused_attention", "kv_cache")
        (tmp_path / "mine.yaml").write_text("".join(f"{name}: 0.25\n" for name in names))
        assert plan(self.LAYER, "workload.operators=null").points == plan(self.LAYER).points
        for given, expected in (("roofline", 1.0), ("mine.yaml", 0.25)):
            layer = plan(self.LAYER, f"workload.operators={given}").points[0].workload.layer
            assert layer.operators.model_dump() == dict.fromkeys(names, expected)

    def test_a_hugging_face_config(self, plan, tmp_path):
        (tmp_path / "llama").mkdir()
        config = tmp_path / "llama" / "config.json"
        config.write_text(
            '{"model_type": "llama", "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 2,'
            ' "num_attention_heads": 8, "num_key_value_heads": 4}'
        )
        workload = "workload={model: llama/config.json, sublayer: IP, tokens: 1024, tp: 4}"
        experiment = plan(BASE, workload)
        shape = experiment.points[0].workload.gemm
        assert (experiment.points[0].workload.model, shape.m, shape.n, shape.k) == ("llama", 1024, 512, 4 * 64)
        leaf = experiment.provenance[0]["workload.model.kv_heads"]
        assert (leaf.value, leaf.source, leaf.position.file) == (4, "`num_key_value_heads`", str(config))
        layer = workload.replace("sublayer: IP", "layer: prompt, sequence: 512")
        kinds = [plan(BASE, layer, *more).points[0].workload.layer.attention for more in ((), [UNFUSED])]
        assert kinds == ["fused", "unfused"]  # as checkpoints run today, unless the experiment says otherwise

    def test_models_and_layers_are_swept(self, plan):
        experiment = plan(
            self.LAYER + "sweep: {grid: {workload.model: [T-NLG, Mega-GPT-2], workload.layer: [prompt, training]}}"
        )
        assert [(p.workload.model, p.workload.layer.kind) for p in experiment.points] == [
            ("T-NLG", "prompt"),
            ("T-NLG", "training"),
            ("Mega-GPT-2", "prompt"),
            ("Mega-GPT-2", "training"),
        ]


class TestParametersOfAStrategy:
    def test_points_that_do_not_depend_on_them_are_kept_once(self, plan):
        text = BASE + "sweep: {grid: {strategy.communication_units: [8, 16], strategy: [sequential, cu-split]}}"
        experiment = plan(text)
        assert [(p.strategy, p.strategy_params) for p in experiment.points] == [
            ("sequential", {}),
            ("cu-split", {"communication_units": 8}),
            ("cu-split", {"communication_units": 16}),
        ]
        assert experiment.n_duplicates == 1

    def test_a_pinned_strategy_does_not_make_them_unused(self, plan):
        text = BASE + "sweep: {grid: {strategy: [sequential, {name: cu-split, communication_units: 8}]}}"
        point = plan(text, "strategy={name: sequential, communication_units: 8}").points[0]
        assert (point.strategy, point.strategy_params) == ("sequential", {})

    def test_of_the_user(self, plan, tmp_path):
        (tmp_path / "chunky.py").write_text(
            "from t3sim.plugins import Parameter, Plan, gemm_part, strategy\n"
            '@strategy("test_chunky", parameters={"chunks": Parameter(4, words={"all": 0}, minimum=1)})\n'
            "def chunky(op, params):\n    return Plan(gemm_part(op))\n"
        )
        text = BASE + "plugins: [chunky.py]\nsweep: {grid: {strategy.chunks: [8, all], strategy: [t3, test_chunky]}}\n"
        experiment = plan(text)
        assert [(p.strategy, p.strategy_params) for p in experiment.points] == [
            ("t3", {}),
            ("test_chunky", {"chunks": 8}),
            ("test_chunky", {"chunks": "all"}),
        ]


class TestParametersWithoutAPolicy:
    def test_go_to_the_declared_policies_that_have_them(self, plan):
        text = BASE + "sweep: {grid: {strategy: [sequential, t3, t3-mca]}}"
        arbitration = [point.arbitration for point in plan(text, "arbitration.threshold=10").points]
        assert [a and (a.policy, a.params) for a in arbitration] == [
            None,
            ("round_robin", {}),
            ("mca", {"threshold": 10}),
        ]

    def test_that_no_strategy_uses_are_refused(self, problems):
        (line,) = problems(BASE, "arbitration.threshold=10")
        assert line == (
            "-s arbitration.threshold=10: arbitration.threshold: no strategy of the experiment declares a policy with"
            " the parameter `threshold`"
        )


def test_collective_alone(plan):
    run = plan(BASE, "workload={collective: {op: all-gather, size: 96 MiB, gpus: 4}}", "strategy=sequential").points[0]
    assert (run.workload.tp, run.workload.gemm, run.workload.collective.size) == (4, None, 96 << 20)


def test_the_schema_covers_every_key():
    schema = experiment_schema()
    assert {"machine", "workload", "strategy", "sweep", "arbitration"} <= set(schema["properties"])
    assert {"start_skew", "link"} <= set(schema["$defs"]["MachineSpec"]["properties"])
    assert r"^gpu\[[0-9]+\]$" in schema["$defs"]["MachineSpec"]["patternProperties"]
    workload = schema["$defs"]["WorkloadFile"]["properties"]
    assert {"layer", "attention", "tokens", "sequence"} <= set(workload)
    assert ["training", "prompt", "generation"] in [option.get("enum") for option in workload["layer"]["anyOf"]]
    assert schema["$defs"]["LinkSpec"]["properties"]["bandwidth"]["type"] == "string"


class TestRefusedPoints:
    SWEPT = BASE + "sweep: {grid: {workload.tp: [8, 4], strategy: [t3, distfuse]}}"

    def test_values_that_do_not_fit_refuse_their_points_only(self, plan):
        experiment = plan(self.SWEPT)
        assert [(run.workload.tp, run.strategy) for run in experiment.runnable] == [(8, "t3"), (4, "t3")]
        refused = [experiment.point_in_words(i) for i in experiment.refused]
        assert refused == ["workload.tp 8, strategy distfuse", "workload.tp 4, strategy distfuse"]

    def test_if_all_are_refused_so_is_the_file(self, problems):
        (line,) = problems(self.SWEPT, "strategy=distfuse")
        assert line.startswith("-s strategy=distfuse: strategy: ")

    def test_what_cannot_be_planned_names_strategy_and_point(self, problems):
        bare = BASE.replace("{model: T-NLG, sublayer: FC-2, tp: 8}", "{gemm: {m: 200, n: 256, k: 64}, tp: 4}")
        swept = bare + "sweep: {grid: {strategy: [copy-engine-scatter], workload.gemm.n: [512, 1024]}}"
        lines = problems(swept)
        assert [re.findall(r"strategy copy-engine-scatter, workload.gemm.n (\d+): ", line) for line in lines] == [
            ["512"], ["1024"],
        ]  # fmt: skip


class TestOverrideOfAMappingAboveAnAxis:
    SWEPT = BASE + "sweep: {grid: {workload.tp: [4, 8], machine.link.latency: [1 us, 2 us]}}"
    FC1 = "{model: T-NLG, sublayer: FC-1%s}"

    def test_axes_that_it_does_not_name_remain(self, plan):
        experiment = plan(self.SWEPT, f"workload={self.FC1 % ''}", "machine=t3-75")
        found = {
            (p.machine.name, p.machine.link.latency, p.workload.sublayer, p.workload.tp) for p in experiment.points
        }
        assert {(latency, sublayer, tp) for _, latency, sublayer, tp in found} == {
            (latency, "FC-1", tp) for latency in (10**6, 2 * 10**6) for tp in (4, 8)
        }
        assert {name.partition("+")[0] for name, *_ in found} == {"t3-75"}

    def test_axes_that_it_names_are_pinned(self, plan):
        experiment = plan(self.SWEPT, f"workload={self.FC1 % ', tp: 16'}")
        assert list(experiment.axes) == ["machine.link.latency"]
        assert {p.workload.tp for p in experiment.points} == {16}
