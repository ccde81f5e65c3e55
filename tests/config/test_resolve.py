"""Machines: overrides, provenance, and what is checked across fields."""

from operator import attrgetter

import pytest

from t3sim.config.resolve import resolve_machine
from t3sim.config.yaml_loader import load_yaml_text
from t3sim.errors import ConfigError


def machine(text):
    return resolve_machine(load_yaml_text(f"machine: {text}", "e.yaml").get("machine"))


def messages(text):
    with pytest.raises(ConfigError) as error:
        machine(text)
    return [(problem.key.removeprefix("machine."), problem.message) for problem in error.value.problems]


def test_overrides_change_the_value_its_provenance_and_the_name():
    resolved = machine("{preset: t3-150, link: {bandwidth: 100 GB/s}}")
    assert resolved.spec.link.bandwidth == 100 * 10**9
    assert resolved.spec.name == "t3-150+link.bandwidth=100GB/s"
    leaf = resolved.leaves()["link.bandwidth"]
    assert (leaf.origin, str(leaf.position)) == ("", "e.yaml:1:45")
    assert resolved.leaves()["link.latency"].source == "T3 Table 1"


def test_an_override_keeps_its_own_origin():
    leaf = machine("{preset: t3-150, gpu: {n_compute_units: {value: 104, origin: datasheet, source: MI210}}}").leaves()[
        "gpu.n_compute_units"
    ]
    assert (leaf.value, leaf.origin, leaf.source) == (104, "datasheet", "MI210")


def test_naming_another_part_replaces_it():
    resolved = machine("{preset: t3-75, gpu: cu80, link: {preset: ring-150, latency: 1 us}}")
    assert resolved.spec.gpu.compute_unit.matrix_flops_per_cycle == 2048
    assert (resolved.spec.link.bandwidth, resolved.spec.link.latency) == (150 * 10**9, 10**6)


def test_a_machine_of_parts_needs_a_name():
    parts = "gpu: cu80, memory: hbm2-1tb, link: ring-75"
    assert machine(f"{{name: mine, {parts}}}").spec.name == "mine"
    [(key, message)] = messages(f"{{{parts}}}")
    assert (key, "is missing" in message) == ("name", True)


def test_what_is_missing_is_described_with_its_unit_or_an_example():
    """Of a network interface, which no preset has: newcomers have to know what the values are."""
    said = dict(messages("{preset: t3-tiny, link: {topology: two-level, gpus_per_node: 2, nic: {}}}"))
    assert "messages/s" in said["link.nic.message_rate"]
    assert "`150 GB/s`" in said["link.nic.bandwidth"]
    assert "latency from" in said["link.nic.latency"]


def test_nodes_and_network_interfaces_are_described():
    nic = "nic: {bandwidth: 50 GB/s, latency: 3 us, message_rate: 1000}"
    text = machine(f"{{preset: t3-tiny, link: {{topology: two-level, gpus_per_node: 2, {nic}}}}}").description
    for word in ("nodes of 2 GPUs", "50 GB/s", "3 us"):
        assert word in text


CROSS_FIELD = [
    ("gpu: {n_compute_units: 1000000000000}", "gpu.n_compute_units", "4096"),
    ("gpu: {l2: {n_banks: 16}}", "gpu.l2.n_banks", "`memory.n_channels`"),
    ("gpu: {l2: {hit_latency: 15 cycles}}", "gpu.l2.hit_latency", "`gpu.issue_slot`"),
    ("memory: {stream_queue_entries: 3}", "memory.stream_queue_entries", "4"),
    ("link: {bandwidth: 99999999977 B/s}", "link.bandwidth", "whole"),
    (
        "link: {bandwidth: 40 TB/s}, gpu: {operating_points: {sustained: {matrix_clock: 1 MHz}}}",
        "link.bandwidth",
        "`memory.access`",
    ),
    ("memory: {timing: {nRAS: 10}}", "memory.timing.nRAS", "`nRCDRD`"),
    ("memory: {timing: {nRC: 40}}", "memory.timing.nRC", "`nRAS`"),
    ("memory: {timing: {nFAW: 3}}", "memory.timing.nFAW", "`nRRDS`"),
    ("memory: {timing: {nREFI: 350}}", "memory.timing.nREFI", "`nRFC`"),
    ("memory: {timing: {nREFI: 461, nRFCpb: 400}}", "memory.timing.nREFI", "`nRC`"),
    ("memory: {timing: {nREFI: 352, nRFCpb: 100, nRREFD: 8}}", "memory.timing.nREFI", "`nRP`"),
    ("memory: {timing: {nREFI: 960, nRFCpb: 100}, banks_per_group: 16}", "memory.timing.nREFI", "`nRP`"),
    ("memory: {timing: {nCCDL: 1}}", "memory.timing.nCCDL", "`nCCDS`"),
    ("memory: {n_channels: 24}", "memory.n_channels", "power"),
    ("memory: {banks_per_group: 3}", "memory.banks_per_group", "power"),
    ("memory: {queue: {kind: split, write_high_watermark: 65}}", "memory.queue.write_high_watermark", "`entries`"),
    ("memory: {queue: {kind: split, write_entries: 40}}", "memory.queue.write_high_watermark", "48"),
    (
        "memory: {queue: {kind: split, write_low_watermark: 48}}",
        "memory.queue.write_low_watermark",
        "`write_high_watermark`",
    ),
    ("memory: {queue: {kind: split, read_age: 300 ns}}", "memory.queue.read_age", "`write_age`"),
    ("memory: {queue: {turnaround_to_writes: 125 ns}}", "memory.queue.turnaround_to_writes", "`write_age`"),
    ("gpu: {l2: {n_banks: 48}}", "gpu.l2.n_banks", "power"),
    ("gpu: {l2: {capacity: 11 MiB}}", "gpu.l2.capacity", "`n_banks`"),
    ("gpu: {l2: {capacity: 1000 B}}", "gpu.l2.capacity", "`n_banks`"),
    ("gpu: {tracker: {n_sets: 100}}", "gpu.tracker.n_sets", "power"),
    ("gpu: {compute_clock: 1.4000001 GHz}", "gpu.compute_clock", "1400000100"),
    ("gpu: {compute_clock: 1.409 GHz}, memory: {clock: 1.001 GHz}", "gpu.compute_clock", "`gpu.compute_clock`"),
    ("gpu: {l2: {line: 512 B}}", "gpu.l2.line", "`memory.channel_interleave`"),
    ("memory: {row: 32 KiB}", "memory.row", "`memory.access`"),
    ("memory: {preset: hbm2-1tb-32b, row: 16 KiB}", "memory.row", "`memory.access`"),
    ("memory: {banks_per_group: 32}", "memory.banks_per_group", "`memory.n_bank_groups`"),
    ("gpu: {l2: {line: 256 B}}, memory: {preset: hbm2-1tb-32b}", "gpu.l2.line", "`memory.access`"),
    ("memory: {timing: {nRTW: 13}}", "memory.timing.nRTW", "`nCL`"),
    ("gpu: {l2: {hit_latency: 641 cycles}}", "gpu.l2.hit_latency", "`gpu.issue_slot`"),
    ("gpu: {l2: {n_partitions: 1, bank_queue_entries: 361}}", "gpu.l2.bank_queue_entries", "`line`"),
    ("gpu: {l2: {bank_queue_entries: 261}}", "gpu.l2.bank_queue_entries", "`line`"),
    ("gpu: {l2: {crossing_latency: 161 cycles}}", "gpu.l2.crossing_latency", "`gpu.issue_slot`"),
    ("gpu: {l2: {n_partitions: 3}}", "gpu.l2.n_partitions", "`memory.n_channels`"),
    (
        "gpu: {l2: {n_partitions: 1, hit_latency: 640 cycles, bank_queue_entries: 161}}",
        "gpu.l2.bank_queue_entries",
        "`line`",
    ),
    ("gpu: {l2: {n_partitions: 1}}, memory: {timing: {nCL: 627, nRTW: 1000}}", "memory.timing.nCL", "`nBL`"),
    ("gpu: {l2: {n_partitions: 1}}, memory: {timing: {nCWL: 627}}", "memory.timing.nCWL", "`nBL`"),
]


@pytest.mark.parametrize(("text", "key", "expected"), CROSS_FIELD)
def test_checks_across_fields(text, key, expected):
    assert any(place == key and expected in message for place, message in messages(f"{{preset: t3-150, {text}}}"))


LEGAL_EDGES = [
    ("memory: {timing: {nCCDS: 2, nCCDL: 2, nCCDWS: 2, nCCDWL: 2}}", {"memory.timing.nCCDWL": 2}),
    ("memory: {timing: {nRAS: 14, nRC: 28}}", {"memory.timing.nRC": 28}),
    ("memory: {timing: {nREFI: 412}}", {"memory.timing.nREFI": 412}),
    ("memory: {timing: {nREFI: 462, nRFCpb: 400, nRFC: 5000}}", {"memory.timing.nREFI": 462}),
    ("memory: {timing: {nREFI: 353, nRFCpb: 100, nRREFD: 8}}", {"memory.timing.nREFI": 353}),
    ("memory: {timing: {nREFI: 0, nRFCpb: 5000}}", {"memory.timing.nREFI": 0}),
    ("gpu: {l2: {capacity: 11 MiB, associativity: 11}}", {"gpu.l2.capacity": 11 << 20}),
    ("gpu: {l2: {capacity: 8 MiB}}", {"gpu.l2.capacity": 8 << 20}),
    (
        "memory: {queue: {kind: split, entries: 64, write_high_watermark: 64, write_low_watermark: 0}}",
        {"memory.queue.write_high_watermark": 64},
    ),
    ("memory: {queue: {entries: 1}}", {"memory.queue.entries": 1}),
    ("memory: {row: 16 KiB}", {"memory.row": 16 << 10}),
    ("memory: {preset: hbm2-1tb-32b, row: 8 KiB}", {"memory.row": 8 << 10}),
    ("memory: {banks_per_group: 16}", {"memory.banks_per_group": 16}),
    ("gpu: {l2: {line: 256 B}}", {"gpu.l2.line": 256}),
    ("memory: {timing: {nRTW: 14}}", {"memory.timing.nRTW": 14}),
    ("gpu: {l2: {n_partitions: 1, hit_latency: 640 cycles}}", {"gpu.l2.hit_latency": 640}),
    ("gpu: {l2: {n_partitions: 1, bank_queue_entries: 360}}", {"gpu.l2.bank_queue_entries": 360}),
    (
        "gpu: {l2: {n_partitions: 1, hit_latency: 640 cycles, bank_queue_entries: 160}}",
        {"gpu.l2.bank_queue_entries": 160},
    ),
    ("gpu: {l2: {bank_queue_entries: 260}}", {"gpu.l2.bank_queue_entries": 260}),
    ("gpu: {l2: {n_partitions: 1}}, memory: {timing: {nCL: 626, nRTW: 1000}}", {"memory.timing.nCL": 626}),
]


@pytest.mark.parametrize(("text", "expected"), LEGAL_EDGES)
def test_values_at_the_edge_are_legal(text, expected):
    spec = machine(f"{{preset: t3-150, {text}}}").spec
    assert {path: attrgetter(path)(spec) for path in expected} == expected


def machine_of_files(tmp_path, **texts):
    """Return the machine of the first of *texts*, machine files in one folder."""
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    return resolve_machine(load_yaml_text(f"{tmp_path}/{next(iter(texts))}.yaml", "e.yaml"))


def test_a_machine_file_changes_a_preset_or_another_file(tmp_path):
    resolved = machine_of_files(
        tmp_path,
        mine="preset: other.yaml\nlink: {latency: 1 us}\ngpu: {l2: {capacity: 8 MiB}}\n",
        other="preset: t3-150\nname: other\nlink: {preset: ring-75}\ngpu: {l2: {n_banks: 32}}\n",
    )
    assert (resolved.spec.name, resolved.description.split(":")[0]) == ("mine", "changed from other.yaml")
    assert (resolved.spec.link.bandwidth, resolved.spec.link.latency) == (75 * 10**9, 10**6)
    assert (resolved.spec.gpu.l2.capacity, resolved.spec.gpu.l2.n_banks) == (8 * 2**20, 32)
    assert resolved.spec.memory == machine("t3-150").spec.memory
    assert str(resolved.leaves()["gpu.l2.n_banks"].position).endswith("other.yaml:4:21")


def test_machine_files_that_name_each_other_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"machine\.preset: these files name each other in a circle"):
        machine_of_files(tmp_path, one="preset: other.yaml\n", other="preset: one.yaml\n")
