"""The receiver: one process on the replication connection, which appends everything that the source sends to the log.

It confirms to the source only what is durable, and only positions that the source has sent. It does not decode values.
"""
