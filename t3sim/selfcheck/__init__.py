"""Self-test of the simulator on the machine of its user, one line for each property."""
