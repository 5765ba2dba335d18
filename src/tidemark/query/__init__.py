"""Questions to the mirror: SQL over its tables as of one moment."""
