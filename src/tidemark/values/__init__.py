"""Decoders and encoders by type family: PostgreSQL's binary and text formats, and Arrow arrays. They perform no I/O."""
