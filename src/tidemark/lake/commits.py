"""Commits to one Delta table, each with the LSN that it brings the table to as its `txn` version.

A commit has three outcomes: done, refused, or unknown, which is settled by reading the table back. There is one writer:
Delta refuses a second one whose handle is older than the first one's last commit, because both commit the same `txn`.
That is the fence behind the lock.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from tidemark.clock import Lsn
from tidemark.errors import CommitUnknown, FolderNotShared, LakeDamaged, LakeInUse
from tidemark.lake.columns import COMMIT_TIMESTAMP, OURS, StoredColumn, stored_columns
from tidemark.lake.files import DataFile, sync
from tidemark.lake.points import Point, reached

APP = "tidemark"
RETRY = "Retry the command. If another process writes this lake, stop that process first."
_RESTORE = "Restore the lake from a backup."
_FIELD_ID = b"PARQUET:field_id"
_NTZ = "timestampNtz"
_ATTEMPTS = 5
CONFIGURATION = {
    "delta.checkpointInterval": "50",
    "delta.enableExpiredLogCleanup": "true",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.deletedFileRetentionDuration": "interval 7 days",  # after that nobody knows when a file was let go
}
STATISTICS = "delta.dataSkippingStatsColumns"  # only these columns have statistics
_CHANGES = {**CONFIGURATION, STATISTICS: ",".join(name for name in OURS.names if name != COMMIT_TIMESTAMP)}


class ChangeTable:
    """The `changes` of one table, held open by its writer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._table = opened(folder)

    @classmethod
    def create(cls, folder: Path, columns: Sequence[StoredColumn]) -> ChangeTable:
        """Make it, or take what an earlier attempt made."""
        folder.mkdir(parents=True, exist_ok=True)
        schema = delta_schema([*(column.field() for column in columns), *OURS])
        DeltaTable.create(folder, schema, mode="ignore", configuration=_CHANGES)
        return cls(folder)

    @property
    def applied(self) -> Lsn:
        """Every change up to there is in it."""
        return applied(self._table)

    @property
    def columns(self) -> tuple[StoredColumn, ...]:
        """The source's columns that it has."""
        return stored_columns(schema_of(self._table))

    def require_columns(self, columns: Sequence[StoredColumn]) -> None:
        """Add the columns that it does not have. Done twice, it does nothing."""
        there = {column.name for column in self.columns}
        new = [column.field() for column in dict.fromkeys(columns) if column.name not in there]
        if new:
            brought_up_to_date(self._table, self.folder, self.applied)
            self._table.alter.add_columns(list(delta_schema(new).fields))
            reached(Point.COLUMNS_ADDED)

    def append(self, files: Sequence[DataFile], lsn: Lsn) -> None:
        """Add files and with them everything up to `lsn`, in one commit. Never at or below what is applied."""
        commit(self._table, self.folder, Commit(lsn, files))


@dataclass(frozen=True, slots=True)
class Commit:
    """What is done to a table at once, and the LSN that it is brought to.

    With another `schema` than it has, the files are all that it holds afterwards; what begins `anew` may be brought to
    an LSN below the one where it was.
    """

    lsn: Lsn
    adds: Sequence[DataFile]
    removes: Sequence[str] = ()
    schema: pa.Schema | None = None
    also: Mapping[str, int] = field(default_factory=dict)
    anew: bool = False


def commit(table: DeltaTable, folder: Path, what: Commit) -> None:
    """Do it in one Delta commit, and bring the handle up to date. Never at or below where the table is."""
    if what.lsn <= applied(table) and not what.anew:
        raise LakeInUse(f"{folder} is already at {applied(table)}, and cannot be set to {what.lsn}", RETRY)
    _require_files(folder, what.adds)
    now = int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size_bytes, {}, now, True, file.stats) for file in what.adds
    ]
    if what.schema is None:
        actions += [RemoveAction(path, True, now) for path in what.removes]
    versions = [Transaction(app, version) for app, version in {APP: what.lsn.value, **what.also}.items()]
    properties = CommitProperties(app_transactions=versions, max_commit_retries=0)
    mode = "append" if what.schema is None else "overwrite"
    schema = table.schema() if what.schema is None else delta_schema(what.schema)
    was = applied(table)
    if what.schema is not None:
        _require_features(table, folder, what.schema)
    done = False
    while not done:
        before = table.version()
        try:
            table.create_write_transaction(actions, mode, schema, commit_properties=properties)
            reached(Point.TABLE_COMMITTED)
            done = True
        except (DeltaError, OSError) as error:
            done = _settled(table, folder, what, error)
        brought_up_to_date(table, folder, what.lsn if done else was)
    _sync_log(table, folder, before + 1)


def _require_files(folder: Path, files: Sequence[DataFile]) -> None:
    """Refuse to commit a file that is not here as the task that wrote it reported."""
    for file in files:
        try:
            size = (folder / file.path).stat().st_size
        except OSError as error:
            size, why = -1, error.strerror
        else:
            why = f"it has {size:,} bytes"
        if size != file.size_bytes:
            raise FolderNotShared(
                f"{folder / file.path}, which a Spark task wrote with {file.size_bytes:,} bytes, is not visible to the "
                f"driver: {why}",
                "Mount the lake at the same path on the driver and on every executor.",
            )


def brought_up_to_date(table: DeltaTable, folder: Path, lsn: Lsn) -> None:
    """Have a handle take in what others did, which may only have been to let files go."""
    table.update_incremental()
    if applied(table) != lsn:
        raise LakeInUse(f"another process changed {folder}, which is now at {applied(table)}", RETRY)


def _require_features(table: DeltaTable, folder: Path, schema: pa.Schema) -> None:
    """Replacing a schema does not tell that it needs more of a reader; then nobody could read the table any more."""
    if _has_plain_timestamps(schema) and _NTZ not in (table.protocol().reader_features or ()):
        was = applied(table)
        table.alter.add_feature(TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True)
        brought_up_to_date(table, folder, was)


def _has_plain_timestamps(schema: pa.Schema) -> bool:
    kinds = [kind.value_type if pa.types.is_list(kind) else kind for kind in schema.types]
    return any(pa.types.is_timestamp(kind) and kind.tz is None for kind in kinds)


def _settled(table: DeltaTable, folder: Path, what: Commit, error: Exception) -> bool:
    """Find out by reading whether a commit came about. It did not, but may, if only files were let go meanwhile."""
    try:
        there = opened(folder)
        paths = set(pa.table(there.get_add_actions())["path"].to_pylist())
    except Exception as unreadable:
        raise CommitUnknown(
            f"cannot determine whether the commit of {what.lsn} to {folder} succeeded: {error}", "Retry the command."
        ) from unreadable
    if applied(there) == what.lsn and all(file.path in paths for file in what.adds):
        return True
    if there.version() > table.version() and applied(there) == applied(table):
        return False
    if there.version() > table.version():
        raise LakeInUse(f"another process changed {folder}", RETRY) from error
    raise CommitUnknown(f"the commit of {what.lsn} to {folder} failed: {error}", "Retry the command.") from error


def let_go(folder: Path, paths: Sequence[str]) -> None:
    """Commit that a table holds these files no more. It is brought to no other LSN by that."""
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        table = opened(folder)
        there = set(pa.table(table.get_add_actions())["path"].to_pylist())
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [RemoveAction(path, True, now) for path in paths if path in there]
        if not actions:
            return None
        before = table.version()
        try:
            properties = CommitProperties(max_commit_retries=0)
            table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)
        except (DeltaError, OSError) as error:
            failure = error
            continue
        table.update_incremental()
        return _sync_log(table, folder, before + 1)
    raise LakeInUse(
        f"cannot remove expired files from {folder}: other commits came first {_ATTEMPTS} times", "Retry the command."
    ) from failure


def is_there(folder: Path) -> bool:
    """Whether a table has been made: its folder is there a moment before its first commit."""
    return next((folder / "_delta_log").glob("*.json"), None) is not None


def opened(folder: Path, version: int | None = None) -> DeltaTable:
    """A Delta table that must be there, as it is or as it was."""
    try:
        return DeltaTable(folder, version=version)
    except (DeltaError, OSError) as error:
        raise LakeDamaged(f"cannot open the Delta table {folder}: {error}", _RESTORE) from error


def require_version(table: DeltaTable, folder: Path, version: int) -> None:
    """Make a commit durable, and refuse to go on with a table that someone else has committed to meanwhile.

    Delta itself leaves it to the system when its log reaches the disk. Ours must be there before anyone relies on it.
    """
    if table.version() != version:
        raise LakeInUse(f"another process changed {folder}", RETRY)
    _sync_log(table, folder, version)


def _sync_log(table: DeltaTable, folder: Path, first: int) -> None:
    """Have the commits from one on, of whoever they are, on the disk."""
    log = folder / "_delta_log"
    try:
        for version in range(first, table.version() + 1):
            sync(log / f"{version:020}.json")
        sync(log)
    except OSError as error:
        raise CommitUnknown(
            f"cannot flush a commit of {folder} to disk: {error}", "Check the disk, then retry the command."
        ) from error


def applied(table: DeltaTable) -> Lsn:
    """The LSN of its last commit of ours."""
    return Lsn(table.transaction_version(APP) or 0)


def schema_of(table: DeltaTable) -> pa.Schema:
    """Its schema, with the metadata of its fields."""
    return pa.schema(table.schema().to_arrow())


def delta_schema(fields: Iterable[pa.Field]) -> Schema:
    """A schema as Delta keeps it: without field ids, which only the files have.

    DuckDB looks columns up by the ids that a Delta schema has, and reads those without one, and then all, as null.
    """
    plain = [
        field.with_metadata({k: v for k, v in (field.metadata or {}).items() if k != _FIELD_ID}) for field in fields
    ]
    return Schema.from_arrow(pa.schema(plain))
