"""Reads of a mirror: tables at a position, changes, row history, differences, and comparison with the source."""
