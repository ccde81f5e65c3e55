"""From result files to figures, findings and reports; the only user of pandas and matplotlib."""
