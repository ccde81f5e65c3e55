"""Which way of overlapping a GEMM with its collective wins, and why: a search that simulates few of the candidates."""
