"""The shipped presets: complete, legal, and every number with its origin and source."""

import pytest

from t3sim.config import presets
from t3sim.config.experiment import ModelSpec
from t3sim.config.resolve import resolve_machine, resolve_operators, resolve_tiling
from t3sim.config.yaml_loader import Node, Position, load_yaml
from t3sim.errors import ConfigError
from t3sim.registry import unknown_name
from t3sim.strategies import in_order
from t3sim.workload.models import named_model
from t3sim.workload.sublayers import SUBLAYERS

FILES = sorted(presets.configs_root().rglob("*.yaml"))
PLACE = Position("test.yaml", 1, 1)
WITHOUT_SOURCE = {"description", "preset", "gpu", "memory", "link"}  # texts and names of other presets


def raw_leaves(value, path=()):
    if isinstance(value, dict) and "value" not in value:
        for key, child in value.items():
            yield from raw_leaves(child, (*path, key))
    else:
        yield path, value


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_value_has_an_origin_and_a_source(path):
    for key, leaf in raw_leaves(load_yaml(path).plain()):
        if key[-1] in WITHOUT_SOURCE:
            continue
        assert isinstance(leaf, dict), f"{'.'.join(key)} has no origin"
        assert set(leaf) == {"value", "origin", "source"}, key
        assert leaf["origin"] in set(presets.ORIGINS) - {"user"}, key
        assert leaf["source"].strip(), key


def test_there_are_presets_of_each_kind():
    assert {path.parent.name for path in FILES} == set(presets.KINDS)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_preset_is_described(path):
    assert len(load_yaml(path).plain()["description"]) > 30


@pytest.mark.parametrize("name", presets.preset_names("machine"))
def test_machines_resolve_and_keep_the_source_of_every_value(name):
    machine = resolve_machine(Node(name, PLACE))
    assert machine.spec.name == name
    assert "represents" in machine.description
    n_leaves = 0
    for key, leaf in machine.leaves().items():
        if key != "name":
            n_leaves += 1
            assert leaf.origin in presets.ORIGINS, key
            assert leaf.source, key
            assert leaf.position.file.startswith("configs/"), key
    assert n_leaves > 60


MADE_FOR = {"hbm3e-h200": "h200", "hbm3e-mi355x": "mi355x", "hbm3e-b200": "b200", "hbm3-mi300x": "mi300x"}


def presets_memory(name):
    """A memory preset beside parts that it was made for."""
    machine = MADE_FOR.get(name, "t3-150")
    return resolve_machine(Node({"preset": Node(machine, PLACE), "memory": Node(name, PLACE)}, PLACE)).spec.memory


@pytest.mark.parametrize("name", presets.preset_names("memory"))
def test_memories_are_legal_beside_the_other_parts_of_t3_150(name):
    over = {"preset": Node("t3-150", PLACE), "memory": Node(name, PLACE)}
    if name in ("hbm3e-mi355x", "hbm3e-b200", "hbm3-mi300x"):
        over["gpu"] = Node({"l2": Node({"n_banks": Node(128, PLACE)}, PLACE)}, PLACE)  # 128 channels
    machine = resolve_machine(Node(over, PLACE)).spec
    assert machine.memory == presets_memory(name)


def test_the_two_access_sizes_have_the_same_bandwidth():
    wide = resolve_machine(Node("t3-150", PLACE)).spec.memory
    over = {"preset": Node("t3-150", PLACE), "memory": Node("hbm2-1tb-32b", PLACE)}
    narrow = resolve_machine(Node(over, PLACE)).spec.memory
    for memory in (wide, narrow):
        assert memory.n_channels * memory.access * memory.clock == memory.timing.nBL * 1024 * 10**9
    for name in ("nBL", "nCCDS", "nCCDL", "nCCDWS", "nCCDWL"):
        assert getattr(wide.timing, name) == 2 * getattr(narrow.timing, name)


def test_models_of_the_study():
    sizes = {name: named_model(name).spec for name in presets.preset_names("model")}
    assert set(sizes) == {"Mega-GPT-2", "T-NLG", "GPT-3", "PALM", "MT-NLG"}
    expected = ModelSpec(
        name="T-NLG", hidden=4256, layers=78, tokens=8192, tensor_parallel=(8, 16), sequence=1024, heads=28
    )
    assert sizes["T-NLG"] == expected == named_model("t-nlg").spec


@pytest.mark.parametrize("name", presets.preset_names("kernel"))
def test_tilings(name):
    tiling, tree = resolve_tiling(Node(name, PLACE))
    assert tiling == presets.load_kernels(name)
    assert all(leaf.source for path, leaf in tree.leaves())


def test_operators():
    shares, tree = resolve_operators(None, None, "workload.operators")
    bound, _ = resolve_operators(Node("roofline", PLACE), None, "workload.operators")
    assert set(bound.model_dump().values()) == {1.0}
    assert max(shares.model_dump().values()) < 1.0
    assert all(leaf.source for path, leaf in tree.leaves())
    changed, _ = resolve_operators(Node({"norm": Node(0.8, PLACE)}, PLACE), None, "workload.operators")
    assert changed == shares.model_copy(update={"norm": 0.8})


def test_unknown_preset_names_the_nearest_or_the_known_ones():
    for name, said in (("ring-15", "did you mean `ring-150`?"), ("pcie", "(known: nvlink4-switch, ring-150")):
        with pytest.raises(ConfigError) as error:
            presets.load_preset("link", name, PLACE, "machine.link")
        assert str(error.value).startswith(f"test.yaml:1:1: machine.link: unknown link `{name}`")
        assert said in str(error.value)


ALIASES = {
    ("strategy", "NCCL"): "sequential",
    ("strategy", "flux"): "flux-push` or `flux-pull",
    ("strategy", "TE"): "te-p2p-rs",
    ("sublayer", "MLP"): "FC-1` or `FC-2",
    ("sublayer", "down_proj"): "FC-2",
    ("machine", "t3-15"): "t3-150",
}


@pytest.mark.parametrize(("kind", "name"), ALIASES)
def test_what_people_call_it_is_understood(kind, name):
    known = {
        "strategy": [entry.name for entry in in_order()],
        "sublayer": [*SUBLAYERS],
        "machine": presets.preset_names("machine"),
    }[kind]
    assert f"did you mean `{ALIASES[kind, name]}`" in unknown_name(kind, name, known)


def test_another_product_is_not_guessed():
    said = unknown_name("machine", "tpu-v7", presets.preset_names("machine"))
    assert "did you mean" not in said
    assert "derive" in said


def test_a_preset_of_the_user(tmp_path):
    (tmp_path / "fast.yaml").write_text(
        "bandwidth: {value: 300 GB/s, origin: datasheet, source: made up}\nlatency: 1 us\negress_buffer: 4 KiB\n"
    )
    place = Position(str(tmp_path / "experiment.yaml"), 1, 1)
    over = {"preset": Node("t3-150", place), "link": Node("fast.yaml", place)}
    machine = resolve_machine(Node(over, place))
    assert machine.spec.link.bandwidth == 300 * 10**9
    assert machine.leaves()["link.bandwidth"].origin == "datasheet"
