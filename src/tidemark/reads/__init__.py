"""The rows of a table at a boundary: folded versions, changes and the tail of the log."""
