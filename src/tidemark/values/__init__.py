"""Decoders by type family, from PostgreSQL's binary and text formats to Arrow arrays. They perform no I/O."""
