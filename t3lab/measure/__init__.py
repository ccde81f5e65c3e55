"""Programs that measure GPUs with CuPy, on a node that needs neither the simulator's libraries nor its command line.

``program`` runs them and writes what they measured with ``t3lab.measurements``; the others measure one family each.
"""
