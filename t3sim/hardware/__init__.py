"""Measurements of real GPUs: what is recorded, how it is read, and the programs that record it.

``kinds`` says what each kind of measurement holds and what no device can do; ``samples`` reads and writes folders
of them; ``measure`` records them with CuPy on a node that needs neither the simulator's libraries nor its command
line; ``validate`` compares them with simulations.
"""
