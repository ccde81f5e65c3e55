"""Experiments: planning of points from a file, and running them."""
