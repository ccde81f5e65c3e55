"""How often a run under audit is looked at."""

from __future__ import annotations

from t3sim.checks.audit import Audit
from tests.kernel.small import fused_of, machine, mirrored, trace_of

QUANTUM_PS = 20_000


def test_the_invariants_are_looked_at_every_64_quanta_and_at_the_end() -> None:
    wired = mirrored(machine(), fused_of(machine(), trace_of(256, 256, 256, n_chunks=2)), quantum_ps=QUANTUM_PS)
    audit = Audit(has_checks=True)
    followed = audit.follow(wired.devices)
    wired.run(*followed.reports([lambda _share: None]))
    n_quanta = wired.core.now // wired.device.quantum_ticks
    followed.finish()
    assert n_quanta > 640
    assert audit.n_looks == n_quanta // 64 + 1
