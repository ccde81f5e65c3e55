"""The shipped presets: complete, legal, and every number with its origin and source."""

import pytest

from t3sim.config import presets
from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import Node, Position, load_yaml
from t3sim.errors import ConfigError
from t3sim.registry import unknown_name
from t3sim.strategies import in_order
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
