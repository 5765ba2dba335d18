"""Copies of whole tables, in parallel, while the stream continues to be applied."""
