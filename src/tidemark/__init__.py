"""Tidemark: an exact, columnar mirror of a live PostgreSQL database, in a Delta lake, on Spark."""

__version__ = "0.1.0"
