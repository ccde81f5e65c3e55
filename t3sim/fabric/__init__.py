"""Links between GPUs in simulated time."""
