"""Results of a run: one record per point, files, digests and provenance."""
