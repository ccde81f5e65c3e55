"""Compute units: dispatch of workgroups, the matrix pipe, epilogue stores, and the start and end of operations."""
