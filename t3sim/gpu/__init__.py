"""One GPU: its SimPy face, its core, its exchangeable arbitration, its compiled kernel."""
