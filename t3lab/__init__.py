"""The laboratory of t3sim: it measures GPUs, and calibrates and validates machines with the measurements."""
