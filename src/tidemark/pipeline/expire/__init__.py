"""Expiring data: deleting what is older than the retention period, each kind of data by its own rule."""
