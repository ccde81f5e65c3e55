"""One experiment file becomes many points; the points are run and their results written."""
