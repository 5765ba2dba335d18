"""Apply: what the log has, into the lake, a cycle at a time."""
