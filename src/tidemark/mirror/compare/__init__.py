"""Comparison of a mirror with its source in one snapshot, by digests that each engine computes itself."""
