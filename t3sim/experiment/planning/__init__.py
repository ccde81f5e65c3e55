"""From an experiment file to the points of a sweep."""
