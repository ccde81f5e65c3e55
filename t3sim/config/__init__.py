"""What a machine and an experiment are: specs, presets, and the strict reading of files that describe them."""
