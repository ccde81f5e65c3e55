"""Specs of machines and experiments, presets, and the strict reader of their files."""
