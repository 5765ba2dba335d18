"""Where the pipeline writes: the interface, and the Delta lake."""
