"""The proof: a mirror and its source at one snapshot, by digests that either engine computes for itself."""
