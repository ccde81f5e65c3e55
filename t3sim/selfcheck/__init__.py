"""Checks of the simulator on the machine of its user: each property in one line."""
