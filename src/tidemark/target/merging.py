"""Merges a stage into its table, in a transaction of the target.

The numbers of rows that a merge deletes and updates must be those of the changes: another number means that another
application has changed the target.
"""

from __future__ import annotations

from dataclasses import dataclass

from psycopg import sql

from tidemark.errors import TargetDiffers
from tidemark.postgres.session import Session
from tidemark.target.differences import listed
from tidemark.target.statements import Stage

RESTORE = "Run `tidemark compare SOURCE TARGET` to list all differences, and undo them at the target."


@dataclass(slots=True)
class Merged:
    """How many rows a batch has deleted, updated and inserted, and of how many changes that is the net effect.

    `truncated` is how often a table was truncated.
    """

    changes: int = 0
    deleted: int = 0
    updated: int = 0
    inserted: int = 0
    truncated: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether no row of the target was written."""
        return not (self.changes or self.truncated)


@dataclass(frozen=True, slots=True)
class StagedCounts:
    """How many rows of each operation a stage has."""

    inserted: int
    updated: int
    moved: int
    deleted: int


def merge_rows(session: Session, stage: Stage, counts: StagedCounts, merged: Merged) -> None:
    """Merge changes of rows that are identified by a key."""
    moves = _count(session, stage.moves()) if counts.updated else 0
    gone, changed = counts.deleted + counts.moved + moves, counts.updated - moves
    for statement in stage.fetched() if counts.moved + moves else ():
        _count(session, statement)
    if gone and (found := _count(session, stage.deleted())) != gone:
        raise _difference(session, stage, "dm", gone, found)
    update = stage.updated() if changed else None
    if update is not None and (found := _count(session, update)) != changed:
        raise _difference(session, stage, "u", changed, found)
    put_in = counts.inserted + counts.moved + moves
    if put_in:
        _count(session, stage.inserted())
    merged.deleted += gone
    merged.updated += changed
    merged.inserted += put_in


def merge_contents(session: Session, stage: Stage, gone: int, new: int, merged: Merged) -> None:
    """Merge changes of a table without a key: as many rows of each content are removed and added as the stage has."""
    if gone and (found := _count(session, stage.deleted_contents())) != gone:
        raise TargetDiffers(
            f"the source removed {gone:,} rows of table {stage.table.label}, and the target has {found:,} of them",
            RESTORE,
        )
    if new:
        _count(session, stage.inserted())
    merged.deleted += gone
    merged.inserted += new


def _difference(session: Session, stage: Stage, operations: str, expected: int, found: int) -> TargetDiffers:
    """Return the error for rows that the target does not have."""
    table = stage.table
    names = ", ".join(table.columns[at].name for at in table.key)
    keys = session.connection.execute(stage.missing(operations)).fetchall()
    which = f"it has no row with ({names}) = {listed(keys)}" if keys else f"it has several with one ({names})"
    return TargetDiffers(
        f"table {table.label} at the target has {found:,} of {expected:,} rows that the source changed; {which}",
        RESTORE,
    )


def _count(session: Session, statement: sql.Composed | None) -> int:
    """Run a statement; return how many rows it concerned."""
    return 0 if statement is None else session.connection.execute(statement).rowcount
