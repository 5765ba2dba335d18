"""The lake: Delta tables at readable paths, which hold the complete state of a mirror."""
