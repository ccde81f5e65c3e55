"""What a validation says: its files read back, figures, winners, and the report."""
