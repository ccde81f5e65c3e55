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
    assert messages(f"{{{parts}}}") == [("name", "is missing")]


def test_all_problems_of_a_machine_at_once():
    found = messages(
        "{preset: t3-150, linkk: 1, link: {bandwidth: 150, latency: 3 GB/s}, "
        "gpu: {n_compute_units: 1.5, l2: {n_banks: -64, capacty: 8 MiB}}, memory: {queue: {kind: splitt}}}"
    )
    assert sorted(found) == [
        ("gpu.l2.capacty", "unknown key `capacty` under `gpu.l2`; did you mean `capacity`?"),
        ("gpu.l2.n_banks", "found `-64`, must be above 0"),
        ("gpu.n_compute_units", "found `1.5`, a whole number is needed"),
        ("link.bandwidth", "150 has no unit; did you mean `150 GB/s`?"),
        ("link.latency", "`3 GB/s` is a bandwidth, here a time is needed, like `500 ns`"),
        ("linkk", "unknown key `linkk`; did you mean `link`?"),
        ("memory.queue.kind", "found `splitt`; allowed: unified, split; did you mean `split`?"),
    ]


CROSS_FIELD = [
    ("gpu: {n_compute_units: 1000000000000}", "gpu.n_compute_units", "is 1000000000000, must be at most 4096"),
    ("gpu: {l2: {n_banks: 16}}", "gpu.l2.n_banks", "is 16, must be a multiple of `memory.n_channels`, 32"),
    (
        "gpu: {l2: {hit_latency: 15 cycles}}",
        "gpu.l2.hit_latency",
        "is 15 cycles, must be at least twice `gpu.issue_slot`, 8 cycles",
    ),
    (
        "memory: {stream_queue_entries: 3}",
        "memory.stream_queue_entries",
        "is 3, must be at least 4: a line read and one written back",
    ),
    ("link: {bandwidth: 99999999977 B/s}", "link.bandwidth", "is 99999999977 B/s; round it to whole MB/s"),
    (
        "link: {bandwidth: 40 TB/s}, gpu: {operating_points: {sustained: {matrix_clock: 1 MHz}}}",
        "link.bandwidth",
        (
            "is 40 TB/s, 5000001 accesses (`memory.access`, 64 B) in one issue slot (`gpu.issue_slot`, 8 cycles), must"
            " be at most 4096"
        ),
    ),
    ("memory: {timing: {nRAS: 10}}", "memory.timing.nRAS", "is 10, cannot be below `nRCDRD`, 14"),
    ("memory: {timing: {nRC: 40}}", "memory.timing.nRC", "is 40, cannot be below `nRAS` + `nRP`, 33 + 14"),
    ("memory: {timing: {nFAW: 3}}", "memory.timing.nFAW", "is 3, cannot be below `nRRDS`, 4"),
    (
        "memory: {timing: {nREFI: 350}}",
        "memory.timing.nREFI",
        (
            "is 350, must be above `nRFC` + `nRC` + `nRCD`, 350 + 47 + 14: between two refreshes a row has to be"
            " opened, used and closed (0 turns refresh off)"
        ),
    ),
    (
        "memory: {timing: {nREFI: 461, nRFCpb: 400}}",
        "memory.timing.nREFI",
        (
            "is 461, must be above `nRFCpb` + `nRC` + `nRCD`, 400 + 47 + 14: between two refreshes of a bank a row has"
            " to be opened, used and closed (0 turns refresh off)"
        ),
    ),
    (
        "memory: {timing: {nREFI: 352, nRFCpb: 100, nRREFD: 8}}",
        "memory.timing.nREFI",
        (
            "is 352, must be above 16 banks x (`nRP` + `nRREFD`, 14 + 8): they are refreshed one after the other, each"
            " after a precharge (0 turns refresh off)"
        ),
    ),
    (
        "memory: {timing: {nREFI: 960, nRFCpb: 100}, banks_per_group: 16}",
        "memory.timing.nREFI",
        (
            "is 960, must be above 64 banks x (`nRP` + 1, 14 + 1): they are refreshed one after the other, each after"
            " a precharge (0 turns refresh off)"
        ),
    ),
    ("memory: {timing: {nCCDL: 1}}", "memory.timing.nCCDL", "is 1, cannot be below `nCCDS`, 2"),
    ("memory: {n_channels: 24}", "memory.n_channels", "is 24, must be a power of two"),
    ("memory: {banks_per_group: 3}", "memory.banks_per_group", "is 3, must be a power of two"),
    (
        "memory: {queue: {kind: split, write_high_watermark: 65}}",
        "memory.queue.write_high_watermark",
        "is 65, cannot be above `entries`, 64",
    ),
    (
        "memory: {queue: {kind: split, write_entries: 40}}",
        "memory.queue.write_high_watermark",
        "is 48, cannot be above `write_entries`, 40",
    ),
    (
        "memory: {queue: {kind: split, write_low_watermark: 48}}",
        "memory.queue.write_low_watermark",
        "is 48, must be below `write_high_watermark`, 48",
    ),
    (
        "memory: {queue: {kind: split, read_age: 300 ns}}",
        "memory.queue.read_age",
        "needs a split queue with `write_age`: others do not hold writes back",
    ),
    (
        "memory: {queue: {turn_to_writes: 125 ns}}",
        "memory.queue.turn_to_writes",
        "needs a split queue with `write_age`: others do not hold writes back",
    ),
    ("gpu: {l2: {n_banks: 48}}", "gpu.l2.n_banks", "is 48, must be a power of two"),
    (
        "gpu: {l2: {capacity: 11 MiB}}",
        "gpu.l2.capacity",
        (
            "11 MiB in 64 banks (`n_banks`) of 16 ways (`associativity`) of 128 B (`line`) makes 88 sets per bank, "
            "must be a power of two; change `associativity`"
        ),
    ),
    (
        "gpu: {l2: {capacity: 1000 B}}",
        "gpu.l2.capacity",
        "1000 B in 64 banks (`n_banks`) of 16 ways (`associativity`) of 128 B (`line`) is not a whole number of sets",
    ),
    ("gpu: {tracker: {n_sets: 100}}", "gpu.tracker.n_sets", "is 100, must be a power of two"),
    ("gpu: {compute_clock: 1.4000001 GHz}", "gpu.compute_clock", "is 1400000100 Hz, must be a whole number of kHz"),
    (
        "gpu: {compute_clock: 1.409 GHz}, memory: {clock: 1.001 GHz}",
        "gpu.compute_clock",
        (
            "`gpu.compute_clock` (1409 MHz) and `memory.clock` (1001 MHz) meet only in ticks of 1410409 MHz; at most "
            "1 THz"
        ),
    ),
    ("gpu: {l2: {line: 512 B}}", "gpu.l2.line", "is 512 B, cannot be larger than `memory.channel_interleave`, 256 B"),
    ("memory: {row: 32 KiB}", "memory.row", "is 32 KiB, must be at most 256 accesses of `memory.access`, 64 B"),
    (
        "memory: {preset: hbm2-1tb-32b, row: 16 KiB}",
        "memory.row",
        "is 16 KiB, must be at most 256 accesses of `memory.access`, 32 B",
    ),
    (
        "memory: {banks_per_group: 32}",
        "memory.banks_per_group",
        "is 32, in `memory.n_bank_groups`, 4, that makes 128 banks of a channel, must be at most 64",
    ),
    (
        "gpu: {l2: {line: 256 B}}, memory: {preset: hbm2-1tb-32b}",
        "gpu.l2.line",
        "is 256 B, must be at most 4 accesses of `memory.access`, 32 B",
    ),
    (
        "memory: {timing: {nRTW: 13}}",
        "memory.timing.nRTW",
        (
            "is 13, cannot be below `nCL` + `nBL` - `nCWL`, 14 + 2 - 2: "
            "a read and the following write would overlap on the data bus"
        ),
    ),
    (
        "gpu: {l2: {hit_latency: 641 cycles}}",
        "gpu.l2.hit_latency",
        "is 641 cycles, half of it must be at most 40 issue slots (`gpu.issue_slot`, 8 cycles)",
    ),
    (
        "gpu: {l2: {n_partitions: 1, bank_queue_entries: 361}}",
        "gpu.l2.bank_queue_entries",
        (
            "is 361, so a line may wait 722 cycles (`line`, 128 B, at `bank_bytes_per_cycle`, 64); "
            "with half of `hit_latency`, 160 cycles, that must be at most 100 issue slots (`gpu.issue_slot`, 8 cycles)"
        ),
    ),
    (
        "gpu: {l2: {bank_queue_entries: 261}}",
        "gpu.l2.bank_queue_entries",
        (
            "is 261, so a line may wait 522 cycles (`line`, 128 B, at `bank_bytes_per_cycle`, 64); with half of "
            "`hit_latency`, 160 cycles, and twice `crossing_latency`, 100 cycles, that must be at most 100 issue slots "
            "(`gpu.issue_slot`, 8 cycles)"
        ),
    ),
    (
        "gpu: {l2: {crossing_latency: 161 cycles}}",
        "gpu.l2.crossing_latency",
        "is 161 cycles, must be at most 20 issue slots (`gpu.issue_slot`, 8 cycles)",
    ),
    (
        "gpu: {l2: {n_partitions: 3}}",
        "gpu.l2.n_partitions",
        "is 3, must divide `memory.n_channels`, 32",
    ),
    (
        "gpu: {l2: {n_partitions: 1, hit_latency: 640 cycles, bank_queue_entries: 161}}",
        "gpu.l2.bank_queue_entries",
        (
            "is 161, so a line may wait 322 cycles (`line`, 128 B, at `bank_bytes_per_cycle`, 64); "
            "with `hit_latency`, 640 cycles, that must be at most 120 issue slots (`gpu.issue_slot`, 8 cycles)"
        ),
    ),
    (
        "gpu: {l2: {n_partitions: 1}}, memory: {timing: {nCL: 627, nRTW: 1000}}",
        "memory.timing.nCL",
        (
            "is 627, with `nBL`, 2, and half of `gpu.l2.hit_latency`, 160 cycles, "
            "that must be at most 120 issue slots (`gpu.issue_slot`, 8 cycles)"
        ),
    ),
    (
        "gpu: {l2: {n_partitions: 1}}, memory: {timing: {nCWL: 627}}",
        "memory.timing.nCWL",
        (
            "is 627, with `nBL`, 2, and half of `gpu.l2.hit_latency`, 160 cycles, "
            "that must be at most 120 issue slots (`gpu.issue_slot`, 8 cycles)"
        ),
    ),
]


@pytest.mark.parametrize(("text", "key", "expected"), CROSS_FIELD)
def test_checks_across_fields(text, key, expected):
    assert (key, expected) in messages(f"{{preset: t3-150, {text}}}")


def test_a_check_across_fields_names_the_place():
    with pytest.raises(ConfigError) as error:
        machine("{preset: t3-150, memory: {row: 32 KiB}}")
    assert str(error.value).startswith("e.yaml:1:41: machine.memory.row: is 32 KiB, must be")


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
