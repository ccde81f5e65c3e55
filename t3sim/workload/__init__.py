"""Workloads: transformer shapes, their GEMMs, and the tiles of a GEMM kernel."""
