"""What is computed: transformer shapes, their GEMMs, and how a kernel cuts a GEMM into tiles."""
