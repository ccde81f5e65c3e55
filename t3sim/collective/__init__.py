"""Schedules of collectives, as data."""
