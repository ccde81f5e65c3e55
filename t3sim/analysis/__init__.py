"""Figures from result files; the only user of matplotlib."""
