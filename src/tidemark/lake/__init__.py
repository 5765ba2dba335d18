"""The lake: ordinary Delta tables at readable paths, and in them all that is true of a mirror."""
