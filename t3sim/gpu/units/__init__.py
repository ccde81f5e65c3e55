"""The compiled core of one GPU: one file per hardware unit, state in one record.

Reading order: ``codes`` (names of the integers), ``state`` (what every unit
remembers), ``loop`` (the order in which units act), then the units.
"""
