"""Copies of whole tables, in parallel, while the stream goes on."""
