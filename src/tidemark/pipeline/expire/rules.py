"""Which files of a table no read at or above the retained LSN needs. Pure.

A closed version is not visible at a boundary at or above its end, unless the boundary excludes the commit that ended
it, and no boundary may exclude a commit below the retained LSN. Folded changes are needed only by reads of the changes
themselves; reads of an earlier generation need all its changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidemark.clock import Lsn
from tidemark.lake.changes import ChangeFile
from tidemark.lake.versions import VersionFile, Versions, held
from tidemark.schema.history import Span, TableEventKind, TableHistory


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Files that can be removed from a table."""

    versions: tuple[VersionFile, ...]
    changes: tuple[ChangeFile, ...]


def unneeded(
    history: TableHistory, changes: Sequence[ChangeFile], versions: Versions | None, retained: Lsn
) -> Unneeded:
    """The files that are not needed, given what is folded and where reads begin."""
    spans = spans_from(history, retained)
    if not spans and history.last.kind is TableEventKind.WAITING:
        return Unneeded((), ())  # the state with which it begins is not known yet
    ended: tuple[VersionFile, ...] = ()
    if versions is not None:
        gone = not spans and versions.base < retained
        ended = tuple(f for f in versions.files if gone or (f.greatest_end is not None and f.greatest_end <= retained))
    return Unneeded(ended, tuple(file for file in changes if not _is_needed(file, spans, versions, retained)))


def spans_from(history: TableHistory, retained: Lsn) -> list[Span]:
    """Where the table can be read at or above the retained LSN."""
    return [span for span in history.spans() if span.end is None or span.end >= retained]


def _is_needed(file: ChangeFile, spans: Sequence[Span], versions: Versions | None, retained: Lsn) -> bool:
    """Whether a read of the table or of its changes, at or above the retained LSN, needs this file."""
    if file.greatest > retained:
        return True
    for span in spans:
        folded = held(versions, span.base) if versions is not None and versions.base == span.base.lsn else None
        if folded is None or file.greatest > folded.floor:
            return True
    return False
