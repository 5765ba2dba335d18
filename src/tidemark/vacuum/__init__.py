"""Letting go of the past: what no answerable read needs any more, each kind of thing by its own rule."""
