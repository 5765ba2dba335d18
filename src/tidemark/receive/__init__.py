"""Receive: one process on the replication connection, which puts everything the source sends into the log.

It confirms to the source what is durable, and only positions that the source itself named. It never looks at values.
"""
