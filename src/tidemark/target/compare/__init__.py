"""Comparison of two servers, table by table and row by row."""
