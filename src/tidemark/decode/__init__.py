"""Decode: PostgreSQL's bytes to typed Arrow. Pure: bytes in, columns out, no I/O, no clock, no Spark."""
