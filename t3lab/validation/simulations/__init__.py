"""Simulations that measurements are compared with, by what they simulate."""
