"""Commits to one Delta table, each of which records the LSN that the table reaches as its `txn` version.

A commit succeeds, fails, or has an unknown result, which is resolved by reading the table again. There is one writer
per table. Delta rejects a second writer whose handle is older than the last commit of the first one, because both
commit the same `txn` application ID. This fences writers even if the lock fails.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, TableFeatures, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from tidemark.clock import Lsn
from tidemark.errors import CommitUnknown, FolderNotShared, LakeDamaged, LakeInUse
from tidemark.lake.columns import COMMIT_TIMESTAMP, OURS, StoredColumn, stored_columns
from tidemark.lake.files import DataFile
from tidemark.lake.paths import VERSIONS
from tidemark.storage.disk import sync
from tidemark.storage.fail_points import FailPoint, fail_point

APP, LOG = "tidemark", "_delta_log"
RETRY = "Retry the command. If another process writes this lake, stop that process first."
_RESTORE = "Restore the lake from a backup."
_FIELD_ID = b"PARQUET:field_id"
_NTZ = "timestampNtz"
_ATTEMPTS = 5
_NUMBERED = re.compile(r"(\d{20})\.(?:json|checkpoint\.parquet)(?:#\d+)?")  # with # a file that a killed process left
LOG_S = 600.0  # for so long, commits stay in the log of a table at least
TOMBSTONES_S = 2 * 3600.0  # for so long, a table records when a file was removed
CONFIGURATION = {  # every commit and every reader pays for the commits and removed files that a table records
    "delta.checkpointInterval": "50",
    "delta.enableExpiredLogCleanup": "false",  # `clean_log` does it, once the checkpoint is on disk
    "delta.logRetentionDuration": "interval 10 minutes",  # LOG_S
    "delta.deletedFileRetentionDuration": "interval 2 hours",  # TOMBSTONES_S
}
STATISTICS = "delta.dataSkippingStatsColumns"  # lists the columns that have statistics
_CHANGES = {**CONFIGURATION, STATISTICS: ",".join(name for name in OURS.names if name != COMMIT_TIMESTAMP)}


class ChangeTable:
    """The `changes` of one table, opened by its writer."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._table = opened(folder)
        self._applied = applied(self._table)

    @classmethod
    def create(cls, folder: Path, columns: Sequence[StoredColumn]) -> ChangeTable:
        """Create the table, or open the one that an earlier attempt created."""
        folder.mkdir(parents=True, exist_ok=True)
        schema = delta_schema([*(column.field() for column in columns), *OURS])
        DeltaTable.create(folder, schema, mode="ignore", configuration=_CHANGES)
        return cls(folder)

    @property
    def applied(self) -> Lsn:
        """The applied LSN: the table contains every change up to it."""
        return self._applied

    @property
    def columns(self) -> tuple[StoredColumn, ...]:
        """The stored columns that hold columns of the source."""
        return stored_columns(schema_of(self._table))

    def require_columns(self, columns: Sequence[StoredColumn]) -> None:
        """Add the columns that the table does not have. Idempotent."""
        there = {column.name for column in self.columns}
        new = [column.field() for column in dict.fromkeys(columns) if column.name not in there]
        if new:
            self._refresh()
            brought_up_to_date(self._table, self.folder, {APP: self.applied.value})
            self._table.alter.add_columns(list(delta_schema(new).fields))
            fail_point(FailPoint.COLUMNS_ADDED)

    def append(self, files: Sequence[DataFile], lsn: Lsn) -> None:
        """Add files in one commit that makes the table complete up to `lsn`, which must be above its applied LSN."""
        self._refresh()
        commit(self._table, self.folder, Commit(lsn, files))
        self._applied = lsn

    def _refresh(self) -> None:
        """Open the table again if its log no longer has the commit of this handle, which may be old."""
        self._table = reopened(self._table, self.folder, {APP: self._applied.value})


@dataclass(frozen=True, slots=True)
class Commit:
    """One atomic commit to a table, and the LSN that the table reaches.

    With a `schema`, the commit replaces the table's schema and all of its files. With `anew`, the LSN may be below that
    of the table.
    """

    lsn: Lsn
    adds: Sequence[DataFile]
    removes: Sequence[str] = ()
    schema: pa.Schema | None = None
    also: Mapping[str, int] = field(default_factory=dict)
    anew: bool = False


def commit(table: DeltaTable, folder: Path, what: Commit) -> None:
    """Make one Delta commit and refresh the handle. Rejects an LSN at or below that of the table, unless `anew`.

    If another process has only removed expired files in the meantime, the commit is retried. It must not have started a
    generation either, whose LSN can be the same: so all `txn` versions of the commit are compared.
    """
    if what.lsn <= applied(table) and not what.anew:
        raise LakeInUse(f"{folder} is already at {applied(table)}, and cannot be set to {what.lsn}", RETRY)
    _require_files(folder, what.adds)
    now = int(time.time() * 1000)
    actions: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size_bytes, {}, now, True, file.stats) for file in what.adds
    ]
    if what.schema is None:
        actions += [RemoveAction(path, True, now) for path in what.removes]
    versions = {APP: what.lsn.value, **what.also}
    transactions = [Transaction(app, version) for app, version in versions.items()]
    properties = CommitProperties(app_transactions=transactions, max_commit_retries=0)
    mode = "append" if what.schema is None else "overwrite"
    schema = table.schema() if what.schema is None else delta_schema(what.schema)
    was, first = versions_in(table, versions), table.version()
    if what.schema is not None:
        _require_features(table, folder, what.schema, was)
    done = False
    while not done:
        try:
            table.create_write_transaction(actions, mode, schema, commit_properties=properties)
            fail_point(FailPoint.TABLE_COMMITTED)
            done = True
        except (DeltaError, OSError) as error:
            done = _settled(table, folder, what, error)
        brought_up_to_date(table, folder, versions if done else was)
    _sync_log(table, folder, first)


def _require_files(folder: Path, files: Sequence[DataFile]) -> None:
    """Reject a commit of a file that is missing here or has another size than its task reported."""
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


def brought_up_to_date(table: DeltaTable, folder: Path, versions: Mapping[str, int]) -> None:
    """Refresh a handle. Other processes may only have removed files: the table must have these `txn` versions."""
    table.update_incremental()
    if versions_in(table, versions) != versions:
        raise LakeInUse(f"another process changed {folder}, which is now at {applied(table)}", RETRY)


def reopened(table: DeltaTable, folder: Path, versions: Mapping[str, int]) -> DeltaTable:
    """Return a handle, opened again if the log no longer has its commit, without which it has no `txn` versions either.

    Other processes may only have removed files since: the table must have these `txn` versions.
    """
    if (folder / LOG / f"{table.version():020}.json").exists():
        return table
    there = opened(folder)
    if versions_in(there, versions) != versions:
        raise LakeInUse(f"another process changed {folder}", RETRY)
    return there


def versions_in(table: DeltaTable, applications: Iterable[str]) -> dict[str, int]:
    """Return the `txn` versions of these applications, 0 for one without any."""
    return {each: table.transaction_version(each) or 0 for each in applications}


def _require_features(table: DeltaTable, folder: Path, schema: pa.Schema, was: Mapping[str, int]) -> None:
    """Enable the Delta feature that a new schema needs; Delta does not, and the table would become unreadable."""
    if _has_plain_timestamps(schema) and _NTZ not in (table.protocol().reader_features or ()):
        table.alter.add_feature(TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True)
        brought_up_to_date(table, folder, was)


def _has_plain_timestamps(schema: pa.Schema) -> bool:
    kinds = [kind.value_type if pa.types.is_list(kind) else kind for kind in schema.types]
    return any(pa.types.is_timestamp(kind) and kind.tz is None for kind in kinds)


def _settled(table: DeltaTable, folder: Path, what: Commit, error: Exception) -> bool:
    """Return whether a commit that raised took effect; False if only files were removed, so it can be retried."""
    try:
        there = opened(folder)
        paths = set(pa.table(there.get_add_actions())["path"].to_pylist())
    except Exception as unreadable:
        raise CommitUnknown(
            f"cannot determine whether the commit of {what.lsn} to {folder} succeeded: {error}", "Retry the command."
        ) from unreadable
    wanted = {APP: what.lsn.value, **what.also}
    if versions_in(there, wanted) == wanted and all(file.path in paths for file in what.adds):
        return True
    if there.version() > table.version() and versions_in(there, wanted) == versions_in(table, wanted):
        return False
    if there.version() > table.version():
        raise LakeInUse(f"another process changed {folder}", RETRY) from error
    raise CommitUnknown(f"the commit of {what.lsn} to {folder} failed: {error}", "Retry the command.") from error


def remove_files(folder: Path, paths: Sequence[str]) -> None:
    """Commit the removal of files from a table, without a change of its LSN. The files remain on disk."""
    _change_files(folder, lambda there: [path for path in paths if path in there], ())


def exchange_files(folder: Path, paths: Sequence[str], adds: Sequence[DataFile]) -> bool:
    """Replace files by others with the same rows, without a change of the table's LSN. The files remain on disk.

    Return False, without a change, if the table does not contain one of the files.
    """
    _require_files(folder, adds)
    return _change_files(folder, lambda there: paths if there.issuperset(paths) else (), adds)


def _change_files(folder: Path, gone: Callable[[set[str]], Sequence[str]], adds: Sequence[DataFile]) -> bool:
    """Commit a change of a table's files that changes no row, and retry after other commits; return whether it did."""
    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        table = opened(folder)
        now = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            RemoveAction(path, not adds, now)
            for path in gone(set(pa.table(table.get_add_actions())["path"].to_pylist()))
        ]
        if not actions:
            return False
        actions += [AddAction(file.path, file.size_bytes, {}, now, False, file.stats) for file in adds]
        before = table.version()
        try:
            properties = CommitProperties(max_commit_retries=0)
            table.create_write_transaction(actions, "append", table.schema(), commit_properties=properties)
        except (DeltaError, OSError) as error:
            failure = error
            continue
        table.update_incremental()
        _sync_log(table, folder, before + 1)
        return True
    raise LakeInUse(
        f"cannot change the files of {folder}: other commits came first {_ATTEMPTS} times", "Retry the command."
    ) from failure


def is_there(folder: Path) -> bool:
    """Return whether a Delta table exists; its directory exists shortly before its first commit."""
    try:
        with os.scandir(folder / LOG) as entries:
            return any(entry.name.endswith(".json") for entry in entries)
    except FileNotFoundError:
        return False


def old_commits(folder: Path) -> int:
    """Return the number of commits in the log of a table that it need not keep, if a later checkpoint exists."""
    past = time.time() - LOG_S
    with suppress(FileNotFoundError), os.scandir(folder / LOG) as entries:  # it is cleaned up at this moment
        return sum(entry.name.endswith(".json") and entry.stat().st_mtime < past for entry in entries)
    return 0


def opened(folder: Path, version: int | None = None) -> DeltaTable:
    """Open a Delta table that must exist, at its latest or at an earlier version.

    A second attempt succeeds if the first one listed a checkpoint that was deleted before it was read.
    """
    try:
        return DeltaTable(folder, version=version)
    except (DeltaError, OSError):
        try:
            return DeltaTable(folder, version=version)
        except (DeltaError, OSError) as error:
            raise LakeDamaged(f"cannot open the Delta table {folder}: {error}", _RESTORE) from error


def require_version(table: DeltaTable, folder: Path, version: int) -> None:
    """Make a commit durable; reject the table if another process has committed to it in the meantime.

    Delta leaves it to the operating system when its log reaches the disk. Tidemark's commits must be durable before
    another step relies on them.
    """
    if table.version() != version:
        raise LakeInUse(f"another process changed {folder}", RETRY)
    _sync_log(table, folder, version - 1)


def _sync_log(table: DeltaTable, folder: Path, first: int) -> None:
    """Flush all commits from version `first` on to disk, including those of other processes, and their checkpoints.

    The first is the version before a commit: Delta creates and alters tables without flushing that. A table cannot be
    opened if a power failure has cut short its creation or its checkpoint, and has lost columns if it is an alteration.
    """
    log, last = folder / LOG, table.version()
    try:
        for version in range(first, last + 1):
            with suppress(FileNotFoundError):  # an old one, which another process has deleted
                sync(log / f"{version:020}.json")
        sync(log)
        checkpoints = [version for version in range(first, last + 1) if (log / _checkpoint(version)).exists()]
        if checkpoints and folder.name == VERSIONS:
            _sync_checkpoint(log, checkpoints[-1])
        elif checkpoints:
            clean_log(folder)
    except OSError as error:
        raise CommitUnknown(
            f"cannot flush a commit of {folder} to disk: {error}", "Check the disk, then retry the command."
        ) from error


def clean_log(folder: Path, readable: Callable[[], Collection[int]] = tuple) -> None:
    """Delete the commits that the log of a table need not keep, after the last checkpoint is on disk.

    The Delta versions in `readable` remain so: each needs the last checkpoint up to it, and the commits since. The
    expire job does it for `versions`, since earlier generations are read at earlier Delta versions. It is called after
    the log is listed: a generation that ends later than that ends at or above the last checkpoint, and remains too.
    """
    log, past = folder / LOG, time.time() - LOG_S
    with os.scandir(log) as entries:
        numbered = {entry.name: int(named[1]) for entry in entries if (named := _NUMBERED.fullmatch(entry.name))}
    checkpoints = sorted(version for name, version in numbered.items() if name == _checkpoint(version))
    if not checkpoints:
        return
    last = checkpoints[-1]
    _sync_checkpoint(log, last)
    needed = [range(max((each for each in checkpoints if each <= end), default=0), end + 1) for end in readable()]
    for name in sorted(name for name, version in numbered.items() if version < last):
        with suppress(FileNotFoundError):  # another process deletes it
            if not any(numbered[name] in versions for versions in needed) and (log / name).stat().st_mtime < past:
                (log / name).unlink()


def _sync_checkpoint(log: Path, version: int) -> None:
    """Flush a checkpoint to disk, and the file that refers to it, which its writer may not have created yet."""
    sync(log / _checkpoint(version))
    with suppress(FileNotFoundError):
        sync(log / "_last_checkpoint")
    sync(log)


def _checkpoint(version: int) -> str:
    """The name of the checkpoint of a version."""
    return f"{version:020}.checkpoint.parquet"


def applied(table: DeltaTable) -> Lsn:
    """Return the LSN of the last Tidemark commit to the table."""
    return Lsn(table.transaction_version(APP) or 0)


def schema_of(table: DeltaTable) -> pa.Schema:
    """Return the Arrow schema, with the metadata of its fields."""
    return pa.schema(table.schema().to_arrow())


def delta_schema(fields: Iterable[pa.Field]) -> Schema:
    """Return a Delta schema without field IDs, which only the Parquet files have.

    DuckDB matches columns by the field IDs of a Delta schema. If a column has none, it reads that column, and then all
    columns, as null.
    """
    plain = [
        field.with_metadata({k: v for k, v in (field.metadata or {}).items() if k != _FIELD_ID}) for field in fields
    ]
    return Schema.from_arrow(pa.schema(plain))
