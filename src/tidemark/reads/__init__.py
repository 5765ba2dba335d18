"""Reading the rows of a table at a boundary from folded versions, changes and the tail of the log."""
