"""Figures, findings and reports from result files; the only user of pandas and matplotlib."""
