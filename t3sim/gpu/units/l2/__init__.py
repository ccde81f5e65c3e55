"""The L2 in front of the memory channels."""
