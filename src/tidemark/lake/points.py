"""Fail points: named places in a writer at which a test can kill it. In production no observer is attached.

locked                 the process has the lake's lock
catalog read           the source's catalog was read
planned                the cycle is planned, nothing is written
file written           one file is durable and not reported yet; on an executor
written                all files of the cycle are durable, no table is committed
table created          a table exists, without changes
columns added          a table has new columns, without their values
table committed        one table is committed, others of the cycle may not be
all committed          every table is committed, `_cycles` has no row for that yet
cycle committed        `_cycles` has the row, the receiver was not notified that it can trim the log
events committed       `_tables` has the events of a table, the catalog does not
fold planned           the fold is planned, nothing is written
fold written           all files of a fold are durable, its table is not committed
folded                 the versions of a table are committed
generation committed   the copy of a table is committed, `_tables` has no event for it yet
versions ended         the versions of a dropped table are empty, the catalog is not updated
catalog written        the catalog is up to date
retention committed    `_expired` has the retained LSN, nothing is removed
files removed          a table version without expired files is committed, the files still exist
restart decided        the restart request contains the LSN of the gap and the cause, nothing else is changed
log emptied            the restart of all tables is recorded, the old log is removed, the old slot is not
slot dropped           the old slot is dropped, there is no new one
log begun              the new slot and the new log exist, `_cycles` does not contain their position yet
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class FailPoint(Enum):
    """A fail point."""

    LOCKED = "locked"
    LOOKED = "catalog read"
    PLANNED = "planned"
    FILE_WRITTEN = "file written"
    WRITTEN = "written"
    TABLE_CREATED = "table created"
    COLUMNS_ADDED = "columns added"
    TABLE_COMMITTED = "table committed"
    ALL_COMMITTED = "all committed"
    CYCLE_TOLD = "cycle committed"
    HISTORY_TOLD = "events committed"
    FOLD_PLANNED = "fold planned"
    FOLD_WRITTEN = "fold written"
    FOLDED = "folded"
    GENERATION_COMMITTED = "generation committed"
    VERSIONS_ENDED = "versions ended"
    CATALOG_WRITTEN = "catalog written"
    WINDOW_TOLD = "retention committed"
    LET_GO = "files removed"
    RESTART_DECIDED = "restart decided"
    LOG_EMPTIED = "log emptied"
    SLOT_DROPPED = "slot dropped"
    LOG_BEGUN = "log begun"


_attached: list[Callable[[FailPoint], None]] = []


def attach(observer: Callable[[FailPoint], None]) -> None:
    """Call an observer at every fail point from now on."""
    _attached.append(observer)


def reached(point: FailPoint) -> None:
    """Notify the observers that a fail point was reached."""
    for observer in _attached:
        observer(point)
