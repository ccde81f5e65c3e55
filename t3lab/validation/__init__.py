"""Comparison of measurements with simulations, and machines fitted to measurements."""
