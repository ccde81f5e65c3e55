"""Timelines of a run, and their files."""
