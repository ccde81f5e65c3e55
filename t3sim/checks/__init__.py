"""Checks of a run, independent of the workload: these modules read the machine and never change it."""
