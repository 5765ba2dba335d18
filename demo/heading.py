"""Headings of the demonstration."""

from __future__ import annotations


def print_heading(text: str) -> None:
    """Print a heading after an empty line."""
    print(f"\n── {text}", flush=True)
