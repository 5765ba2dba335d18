"""The demonstration: what works today, shown on a private PostgreSQL under load."""
