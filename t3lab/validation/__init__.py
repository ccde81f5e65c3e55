"""Measurements beside simulations of the same thing, and machines whose numbers are fitted to measurements."""
