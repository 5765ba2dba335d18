"""The note that a result of a polled mirror is as of its last poll."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tidemark.lake.polls import Poll


def print_observed(poll: Poll | None) -> None:
    """Print on standard error, for a polled mirror, which poll a result is as of."""
    if poll is not None:
        click.echo(f"tidemark: {observed(poll)}", err=True)


def observed(poll: Poll) -> str:
    """Return the note as one line."""
    return f"as of {poll}" if poll.is_reconciled else f"as of {poll}; {unreconciled(poll)}"


def unreconciled(poll: Poll) -> str:
    """Return the note for a poll that did not search for deleted rows."""
    return f"rows deleted after {poll.seen.reconciled} may still be included"
