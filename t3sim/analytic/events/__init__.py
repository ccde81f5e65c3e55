"""The compiled event loop of outlines."""
