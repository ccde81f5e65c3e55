"""The memory: controller, DRAM queue, channel, near-memory updates, address map."""
