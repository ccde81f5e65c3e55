"""What a run leaves behind: one record per point, the files that hold them, digests and provenance."""
