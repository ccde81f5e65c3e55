"""Closed forms and outlines: times and bounds without a cycle-level simulation."""
