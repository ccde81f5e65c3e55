"""The commands ``measure``, ``calibrate`` and ``validate`` of t3sim's command line."""
