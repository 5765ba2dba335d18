"""How the demonstration speaks."""

from __future__ import annotations


def say(text: str) -> None:
    """A heading."""
    print(f"\n── {text}", flush=True)
