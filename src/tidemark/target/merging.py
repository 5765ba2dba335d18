"""Merges a stage into its table, in a transaction of the target.

The numbers of rows that a merge deletes and updates must be those of the changes: another number means that another
application has changed the target. As many rows must be inserted as there are new ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

from psycopg import sql

from tidemark.errors import RowRejected, TargetDiffers
from tidemark.target.script import Require, Script
from tidemark.target.statements import StageTable, copied_into
from tidemark.target.tables import TargetTable

MOST_KEPT = 1024
_NO_TRIGGERS = "Disable the triggers and rules of the table at the target, and retry the command."
RESTORE = "Run `tidemark compare SOURCE TARGET` to list all differences, and undo them at the target."


@dataclass(slots=True)
class MergedCounts:
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


def merge_rows(script: Script, stage: StageTable, counts: StagedCounts, merged: MergedCounts) -> None:
    """Merge changes of rows that are identified by a key, by statements that are added to a script."""
    statements, table = merge_statements(stage), stage.table.label
    doing = f"applying changes of {table}"

    def require(expected: int) -> Require:
        return partial(_require, f"table {table} at the target", "rows that the source changed", expected)

    moves = 0
    if counts.updated and statements.moves is not None:
        script.add(statements.moves, doing)
        moves = script.run()
    gone, changed = counts.deleted + counts.moved + moves, counts.updated - moves
    for statement in statements.fetched if counts.moved + moves else ():
        script.add(statement, doing)
    if gone:
        script.add(statements.deleted, doing, require(gone))
    if changed and statements.updated is not None:
        script.add(statements.updated, doing, require(changed))
    put_in = counts.inserted + counts.moved + moves
    if put_in:
        script.add(statements.inserted, doing, require_stored(table, put_in))
    merged.deleted += gone
    merged.updated += changed
    merged.inserted += put_in


def merge_contents(script: Script, stage: StageTable, gone: int, new: int, merged: MergedCounts) -> None:
    """Merge changes of a table without a key: as many rows of each content are removed and added as the stage has."""
    statements, table = merge_statements(stage), stage.table.label
    doing = f"applying changes of {table}"
    if gone:
        require = partial(_require, f"table {table} at the target", "rows that the source removed", gone)
        script.add(as_bytes(stage.deleted_contents()), doing, require)
    if new:
        script.add(statements.inserted, doing, require_stored(table, new))
    merged.deleted += gone
    merged.inserted += new


def require_stored(table: str, expected: int) -> Require:
    """Return the check that a statement has inserted so many rows: a trigger or a rule can drop them silently."""

    def require(found: int) -> None:
        if found != expected:
            raise RowRejected(
                f"table {table} at the target has stored {found:,} of {expected:,} new rows", _NO_TRIGGERS
            )

    return require


def _require(table: str, which: str, expected: int, found: int) -> None:
    if found != expected:
        raise TargetDiffers(f"{table} has {found:,} of {expected:,} {which}", RESTORE)


@dataclass(frozen=True, slots=True)
class MergeStatements:
    """The statements for one stage as they are sent: they are the same for every batch."""

    copied: bytes
    moves: bytes | None
    fetched: tuple[bytes, ...]
    deleted: bytes
    updated: bytes | None
    inserted: bytes
    emptied: bytes
    truncated: bytes


@lru_cache(MOST_KEPT)
def merge_statements(stage: StageTable) -> MergeStatements:
    """Return the statements for a stage."""
    moves, updated = stage.moves(), stage.updated()
    return MergeStatements(
        as_bytes(stage.copied()),
        as_bytes(moves) if moves is not None else None,
        tuple(map(as_bytes, stage.fetched())),
        as_bytes(stage.deleted()),
        as_bytes(updated) if updated is not None else None,
        as_bytes(stage.inserted()),
        as_bytes(sql.SQL("delete from {}").format(stage.identifier)),
        as_bytes(sql.SQL("truncate {}").format(stage.identifier)),
    )


@lru_cache(MOST_KEPT)
def copy_statement(table: TargetTable) -> bytes:
    """Return the statement that reads rows into a table."""
    return as_bytes(copied_into(table))


def as_bytes(statement: sql.Composed | sql.SQL) -> bytes:
    """Return a statement as it is sent; the encoding of sessions is UTF-8."""
    return statement.as_bytes(None)
