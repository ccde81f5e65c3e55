"""Reports of a validation: its files, figures, winners, and the HTML page."""
