"""Measurements of real GPUs as data: kinds, physical limits, and the reader of folders.

``kinds`` and ``samples`` need NumPy at most, since the programs of ``t3lab.measure`` use them on bare nodes.
"""
