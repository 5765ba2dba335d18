"""Another PostgreSQL as the target of a source: its schema, a copy of its rows, and every change, with proof.

Values are not decoded: they pass from server to server in the format in which the source sends them.
"""
