"""Kernels that move data on compute units or copy engines: collectives, sums and copies."""
