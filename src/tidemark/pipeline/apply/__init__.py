"""Apply: write the received log to the lake, one cycle at a time."""
