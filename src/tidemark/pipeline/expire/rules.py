"""What of a table nobody needs who reads at the window's beginning or later. Pure.

A closed version is seen by no boundary at or above its end, unless that hides the commit that ended it, and no boundary
may hide a commit below the window. Changes that are folded are read only as changes; those of an earlier generation are
all that its readers have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.clock import Lsn
from tidemark.lake.changes import ChangeFile
from tidemark.lake.history import Kind, Span, TableHistory
from tidemark.lake.versions import VersionFile, Versions, held


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Files that a table can let go."""

    versions: tuple[VersionFile, ...]
    changes: tuple[ChangeFile, ...]


def unneeded(
    history: TableHistory, changes: Sequence[ChangeFile], versions: Versions | None, retained: Lsn
) -> Unneeded:
    """By what is folded, and where reads begin."""
    spans = spans_from(history, retained)
    if not spans and history.last.kind is Kind.WAITING:
        return Unneeded((), ())  # what it begins with is not known yet
    ended: tuple[VersionFile, ...] = ()
    if versions is not None:
        gone = not spans and versions.base < retained
        ended = tuple(f for f in versions.files if gone or (f.greatest_end is not None and f.greatest_end <= retained))
    return Unneeded(ended, tuple(file for file in changes if not _is_needed(file, spans, versions, retained)))


def spans_from(history: TableHistory, retained: Lsn) -> list[Span]:
    """Where the table can be read in the window."""
    return [span for span in history.spans() if span.end is None or span.end >= retained]


def _is_needed(file: ChangeFile, spans: Sequence[Span], versions: Versions | None, retained: Lsn) -> bool:
    """Whether a read in the window, or one of the changes in it, asks for this file."""
    if file.greatest > retained:
        return True
    for span in spans:
        folded = held(versions, span.base) if versions is not None and versions.base == span.base.lsn else None
        if folded is None or file.greatest > folded.floor:
            return True
    return False
