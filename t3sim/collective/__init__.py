"""Who sends which chunk when: collectives as data."""
