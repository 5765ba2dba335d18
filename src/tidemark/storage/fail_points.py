"""Fail points: named places at which a test can kill a process. In production no observer is attached.

Of the processes that write a lake:

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
changes rewritten      small files of changes are in a new file, which is not committed
changes compacted      the new file has replaced them, and they still exist
part recorded          a part of a large copy is complete and recorded
generation committed   the copy of a table is committed, `_tables` has no event for it yet
versions ended         the versions of a dropped table are empty, the catalog is not updated
catalog written        the catalog is up to date
retention committed    `_expired` has the retained LSN, nothing is removed
files removed          a table version without expired files is committed, the files still exist
restart decided        the restart request contains the LSN of the gap and the cause, nothing else is changed
log emptied            the restart of all tables is recorded, the old log is removed, the old slot is not
slot dropped           the old slot is dropped, there is no new one
log begun              the new slot and the new log exist, `_cycles` does not contain their position yet

Of the receiver:

session begun          a new session is recorded in the log, and the replication connection is not open yet
stream started         the server has accepted START_REPLICATION
block appended         frames are in the log, not synced
synced                 the log is durable, not confirmed
confirmed              the flushed LSN was reported to the server
connection lost        before the next attempt
archived               a segment is in the archive, and this is recorded
ended                  endpos was reached or the receiver was stopped, and the parent is not notified yet

Of a process that clones a database:

clone recorded         the target has the record of the clone, and nothing of the database
definitions created    the tables exist, and are not recorded
table copied           the rows of one table are copied, and this is recorded
keys created           primary keys and unique constraints exist, the other indexes do not
indexes created        all indexes exist, and this is not recorded
batch written          changes are written and not committed
batch committed        changes and the progress are committed, and the receiver is not notified
poll written           what a poll found is written and not committed
poll committed         what a poll found and the watermark are committed
constraints created    foreign keys, triggers and privileges exist, sequences have no values
sequences set          everything is as at the source, and this is not recorded
clone completed        the clone is complete, its slot and its publication still exist
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias


class FailPoint(Enum):
    """A fail point of a process that writes a lake."""

    LOCKED = "locked"
    CATALOG_READ = "catalog read"
    PLANNED = "planned"
    FILE_WRITTEN = "file written"
    WRITTEN = "written"
    TABLE_CREATED = "table created"
    COLUMNS_ADDED = "columns added"
    TABLE_COMMITTED = "table committed"
    ALL_COMMITTED = "all committed"
    CYCLE_COMMITTED = "cycle committed"
    EVENTS_COMMITTED = "events committed"
    FOLD_PLANNED = "fold planned"
    FOLD_WRITTEN = "fold written"
    FOLDED = "folded"
    CHANGES_REWRITTEN = "changes rewritten"
    CHANGES_COMPACTED = "changes compacted"
    PART_RECORDED = "part recorded"
    GENERATION_COMMITTED = "generation committed"
    VERSIONS_ENDED = "versions ended"
    CATALOG_WRITTEN = "catalog written"
    RETENTION_COMMITTED = "retention committed"
    FILES_REMOVED = "files removed"
    RESTART_DECIDED = "restart decided"
    LOG_EMPTIED = "log emptied"
    SLOT_DROPPED = "slot dropped"
    LOG_BEGUN = "log begun"


class ReceiveFailPoint(Enum):
    """A fail point of the receiver."""

    SESSION_BEGUN = "session begun"
    STREAM_STARTED = "stream started"
    BLOCK_APPENDED = "block appended"
    SYNCED = "synced"
    CONFIRMED = "confirmed"
    CONNECTION_LOST = "connection lost"
    ARCHIVED = "archived"
    ENDED = "ended"


class CloneFailPoint(Enum):
    """A fail point of a process that clones a database."""

    RECORDED = "clone recorded"
    DEFINED = "definitions created"
    TABLE_COPIED = "table copied"
    KEYS_CREATED = "keys created"
    INDEXES_CREATED = "indexes created"
    BATCH_WRITTEN = "batch written"
    BATCH_COMMITTED = "batch committed"
    POLL_WRITTEN = "poll written"
    POLL_COMMITTED = "poll committed"
    CONSTRAINTS_CREATED = "constraints created"
    SEQUENCES_SET = "sequences set"
    COMPLETED = "clone completed"


AnyFailPoint: TypeAlias = FailPoint | ReceiveFailPoint | CloneFailPoint
_attached: list[Callable[[AnyFailPoint], None]] = []


def attach(observer: Callable[[AnyFailPoint], None]) -> None:
    """Call an observer at every fail point from now on."""
    _attached.append(observer)


def detach(observer: Callable[[AnyFailPoint], None]) -> None:
    """No longer call an observer."""
    _attached.remove(observer)


def fail_point(point: AnyFailPoint) -> None:
    """Call the observers at a fail point."""
    for observer in _attached:
        observer(point)
