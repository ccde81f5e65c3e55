"""Ports, wire and mailbox between GPUs, and signals."""
