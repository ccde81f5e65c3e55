"""Measurements of real GPUs as data: what each kind holds, what no device can do, how folders of them are read.

``kinds`` and ``samples`` need NumPy at most, since the programs of ``t3lab.measure`` use them on bare nodes.
"""
