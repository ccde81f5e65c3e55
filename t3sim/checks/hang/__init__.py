"""Detection and explanation of deadlocks and livelocks of a machine."""
