"""What people are told of an answer that polls observed, and that no stream told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from tidemark.lake.polls import Poll


def say_observed(poll: Poll | None) -> None:
    """On standard error, if it was a poll: which one, and what it may have left."""
    if poll is not None:
        click.echo(f"tidemark: {observed(poll)}", err=True)


def observed(poll: Poll) -> str:
    """In one line."""
    return f"observed by {poll}" if poll.is_reconciled else f"observed by {poll}; deletes {unreconciled(poll)}"


def unreconciled(poll: Poll) -> str:
    """What it means that a poll did not look for rows that are gone."""
    left = "rows deleted since then may still be there, and in that tables are not consistent with each other"
    return f"reconciled only up to {poll.seen.reconciled}: {left}"
