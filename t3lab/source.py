"""Provenance of a validation: versions of t3sim and this package."""

from pathlib import Path

from t3sim.results.digest import sha256_of, source_digest


def laboratory_digest() -> str:
    """Return the digest of the sources of t3sim and of t3lab."""
    return sha256_of([source_digest(), source_digest(package=Path(__file__).parent)])
