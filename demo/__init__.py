"""The demonstration: a mirror of a private PostgreSQL under load."""
