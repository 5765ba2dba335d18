"""Named moments of a writer at which a test can kill it. In production nothing is attached, and nothing happens.

locked                 the lake's lock is ours
catalog read           the source's catalogue was read
planned                what to apply is known, nothing is written
file written           one file is durable, nobody was told; on an executor
written                all files of the cycle are durable, no table was committed
table created          a table is there, without a change
columns added          a table has new columns, without their values
table committed        one table has its changes, perhaps not all tables
all committed          every table has, `_cycles` does not say so
cycle committed        `_cycles` has the row, the receiver was not notified that it can trim the log
events committed       `_tables` has the events of a table, the catalog does not
fold planned           what to fold is known, nothing is written
fold written           all files of a fold are durable, its table was not committed
folded                 a table has its versions
generation committed   a table has its copy, `_tables` does not say so
versions ended         a dropped table has no rows any more, the catalog does not say so
catalog written        the catalog says what is in the lake now
retention committed    `_expired` has the retained LSN, nothing is removed
files removed          a table version without expired files is committed, the files still exist
restart decided        a request to start over says after which position and why, nothing else is changed
log emptied            tables are told to be started over, the old log is gone, the old slot is not
slot dropped           the old slot is gone, there is no new one
log begun              the new slot and the new log are there, `_cycles` does not say so
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Point(Enum):
    """One of them."""

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


_attached: list[Callable[[Point], None]] = []


def attach(observer: Callable[[Point], None]) -> None:
    """Have this called at every point from now on."""
    _attached.append(observer)


def reached(point: Point) -> None:
    """Say that it was reached."""
    for observer in _attached:
        observer(point)
