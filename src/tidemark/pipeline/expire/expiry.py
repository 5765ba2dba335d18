"""One run of expire: records the retained LSN, then removes files from tables, and only then deletes them from disk.

So a reader that listed the files before still finds them, and a reader that lists them now finds the new retained LSN.
Files stay on disk for a grace period after they were removed from a table, and while a lease exists that is older than
the removal. If the disk is too full to remove files from tables, those that earlier runs have removed are deleted.

`unneeded` finds the files that no read at or above the retained LSN needs. A closed version is not visible at a
boundary at or above its end, unless the boundary excludes the commit that ended it, and no boundary may exclude a
commit below the retained LSN. Folded changes are needed only by reads of the changes themselves; reads of an earlier
generation need all its changes.

Changes above what can be read of a table are needed only by a later copy, or if the table begins without one. Neither
is accepted with a base whose floor is below the retained LSN. A table that was dropped, or of which only inserts are
published, is copied once it is published with all operations, and then needs only the changes after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, LakeError, LakeInUse, LogError, ReceiveFailed
from tidemark.lake.catalog import update_catalog
from tidemark.lake.changes import ChangeFile, read_changes
from tidemark.lake.commits import TOMBSTONES_S, clean_log, is_there, old_commits, opened, remove_files
from tidemark.lake.copy_records import recorded_files, recorded_floors, remove_abandoned
from tidemark.lake.lake import Lake
from tidemark.lake.leases import Leased, leases_in_force, needed_from, oldest
from tidemark.lake.lock import EXPIRING, FOLDING, WRITING, LakeLock
from tidemark.lake.paths import CHANGES, VERSIONS
from tidemark.lake.registers import ExpiryRegister, read_retained, read_times
from tidemark.lake.sync_records import KEEP_S, Retention
from tidemark.lake.unlisted import SeenUnlisted, UnlistedFile, delete, names_in, removed_files, unlisted_files
from tidemark.lake.versions import EarlierGeneration, VersionFile, Versions, earlier_generations, held, read_versions
from tidemark.log.trimming import forget
from tidemark.postgres.names import MirrorNames
from tidemark.receive.client import ReceiveClient
from tidemark.schema.history import Span, TableEventKind, TableHistory
from tidemark.storage.fail_points import FailPoint, fail_point

GRACE_S = 3600.0  # for readers without a lease, such as other engines
ORPHAN_S = 24 * 3600.0  # a file that no table lists may belong to a running job
MARGIN_S = 60.0  # between the time that a commit records and its effect, at most
MANY_COMMITS = 100  # in the log of a table, that are older than the log's retention


@dataclass(frozen=True, slots=True)
class Unneeded:
    """Files that can be removed from a table."""

    versions: tuple[VersionFile, ...]
    changes: tuple[ChangeFile, ...]


def unneeded(
    history: TableHistory,
    changes: Sequence[ChangeFile],
    versions: Versions | None,
    retained: Lsn,
    begins_after: Lsn = Lsn.ZERO,
) -> Unneeded:
    """The files that are not needed, given what is folded and where reads begin.

    If the table begins later, it needs no changes at or below the retained LSN, nor at or below `begins_after`.
    """
    spans, later = spans_from(history, retained), max(retained, begins_after)
    ended: tuple[VersionFile, ...] = ()
    if versions is not None:
        gone = not spans and versions.base < retained
        ended = tuple(f for f in versions.files if gone or (f.greatest_end is not None and f.greatest_end <= retained))
    return Unneeded(ended, tuple(file for file in changes if not _is_needed(file, spans, versions, retained, later)))


def spans_from(history: TableHistory, retained: Lsn) -> list[Span]:
    """Where the table can be read at or above the retained LSN."""
    return [span for span in history.spans() if span.end is None or span.end >= retained]


def _is_needed(file: ChangeFile, spans: Sequence[Span], versions: Versions | None, retained: Lsn, later: Lsn) -> bool:
    """Whether a read of the table or of its changes, at or above the retained LSN, needs this file.

    Above everything that can be read, a table that begins again needs the changes above `later`.
    """
    if all(span.end is not None and span.end < file.least for span in spans):
        return file.greatest > later
    if file.greatest > retained:
        return True
    for span in spans:
        folded = held(versions, span.base) if versions is not None and versions.base == span.base.lsn else None
        if folded is None or file.greatest > folded.floor:
            return True
    return False


@dataclass(frozen=True, slots=True)
class ExpireOptions:
    """The retention, as seconds or as a position, and the time for which removed files stay on disk."""

    keep_s: float | None = KEEP_S
    before: Lsn | None = None
    grace_s: float = GRACE_S

    def __post_init__(self) -> None:
        if (self.keep_s is None) == (self.before is None):
            raise InvalidValue("exactly one of keep_s and before is required", "Pass one of `keep_s` and `before`.")
        if self.grace_s < 0 or (self.keep_s or 0) < 0:
            raise InvalidValue("a retention period cannot be negative", "Use a duration of 0 or more.")

    @classmethod
    def of(cls, retention: Retention, grace_s: float = GRACE_S) -> ExpireOptions:
        """Return the options for a retention. If the history is kept forever, only files that no read needs go."""
        keep_s = retention.keep_s
        return cls(keep_s, Lsn.ZERO if keep_s is None else None, grace_s)


@dataclass(frozen=True, slots=True)
class Removal:
    """The number and size of files of one kind."""

    what: str
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Expired:
    """The retained LSN, the one that the options request, what may keep it lower, and what was removed.

    Leases and `copies` keep it lower: the LSNs of the copies that have not ended, even if their process was killed.
    """

    retained: Lsn
    wanted: Lsn
    leases: tuple[Leased, ...]
    copies: tuple[Lsn, ...]
    removals: tuple[Removal, ...]


def expire_lake(path: Path, options: ExpireOptions, *, dry_run: bool = False) -> Expired:
    """Delete data that is older than the retention, or report what would be deleted. One run at a time."""
    lake = Lake.open(path)
    with LakeLock(path, EXPIRING):
        return _expired(lake, options, dry_run)


def _expired(lake: Lake, options: ExpireOptions, dry_run: bool) -> Expired:
    path = lake.path
    if not dry_run:
        remove_abandoned(path)
    leases, copies = leases_in_force(path), recorded_floors(path)
    cycle, before = lake.cycle(), read_retained(path)
    wanted = min(_wanted(lake, options), cycle.complete)
    retained = max(before, min([wanted, *(lease.lsn for lease in leases), *copies]))
    removals: list[Removal] = []
    with _FirstError() as failing:
        with failing.noted():
            if not dry_run and retained > Lsn.ZERO:
                ExpiryRegister(path).record(retained)
            removals += _tables(lake, _kept_from(path, retained), cycle.complete, dry_run)
        with failing.noted():
            if not dry_run:
                update_catalog(path)  # before files are deleted, so that it never names a version without them
        with failing.noted():
            removals += _files(lake, options, dry_run)
        with failing.noted():
            if not dry_run:
                update_catalog(path)
        removals += _log(lake, retained if dry_run else read_retained(path), dry_run)
    return Expired(retained, wanted, leases, copies, tuple(removals))


class _FirstError:
    """Raises the first of several errors at the end: on a full disk, only the later steps make room for the others."""

    def __init__(self) -> None:
        self._first: Exception | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Run a step, and continue after its error."""
        try:
            yield
        except (LakeError, DeltaError, OSError) as error:
            self._first = self._first or error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None and self._first is not None:
            raise self._first


def _kept_from(lake: Path, retained: Lsn) -> Lsn:
    """The oldest LSN that a read may need: a lease that was taken while the retained LSN was recorded can be older."""
    return min([retained, *(lease.lsn for lease in leases_in_force(lake)), *recorded_floors(lake)])


def _wanted(lake: Lake, options: ExpireOptions) -> Lsn:
    if options.before is not None:
        return options.before
    times = read_times(lake.path)
    past = datetime.fromtimestamp(time.time() - (options.keep_s or 0), UTC)
    applied_lsn = pc.max(times.filter(pc.field("written_at") <= past)["applied_lsn"]).as_py()
    return Lsn(applied_lsn or 0)


def _tables(lake: Lake, retained: Lsn, complete: Lsn, dry_run: bool) -> Iterator[Removal]:
    """Remove expired files from tables. They stay on disk.

    The LSN up to which all definitions are known, `complete`, was read before the histories. So every transaction that
    a later publication of a table concerns commits above it.
    """
    inserts = MirrorNames(lake.mirror).inserts_publication
    for history in lake.tables().values():
        changes = read_changes(lake.path, history.path, Lsn.ZERO)
        is_unpublished = history.last.kind is TableEventKind.DROPPED or history.fingerprint.publications == (inserts,)
        begins_after = complete if is_unpublished else Lsn.ZERO
        found = unneeded(history, changes.files, read_versions(lake.path, history.path), retained, begins_after)
        names = [file.name for file in found.versions]
        paths = [Path(file.path).name for file in found.changes]
        for folder, gone, sizes in (
            (VERSIONS, names, [file.size_bytes for file in found.versions]),
            (CHANGES, paths, [file.size_bytes for file in found.changes]),
        ):
            if gone and not dry_run:
                remove_files(lake.path / history.path / folder, gone)
                fail_point(FailPoint.FILES_REMOVED)
            if gone:
                yield Removal(f"{history.name} {folder}, expired", len(gone), sum(sizes))


def _files(lake: Lake, options: ExpireOptions, dry_run: bool) -> Iterator[Removal]:
    """Delete files from disk that were removed from tables, and files that failed jobs have left."""
    kept_from = _kept_from(lake.path, read_retained(lake.path))
    seen = SeenUnlisted(lake.path, dry_run=dry_run)
    recorded = recorded_files(lake.path)  # before the files: those of a copy are recorded until they are listed
    with ExitStack() as locks:
        all_still = _all_still(lake, locks)
        for history, name in product(lake.tables().values(), (CHANGES, VERSIONS)):
            folder = lake.path / history.path / name
            if not is_there(folder):
                continue
            keep = partial(_earlier, lake, history, kept_from) if name == VERSIONS else list[EarlierGeneration]
            found = _unlisted(folder, recorded, keep)
            since = seen.since(f"{history.path}/{name}", found)
            leases = leases_in_force(lake.path)
            age = max(options.grace_s, time.time() - oldest(leases) + MARGIN_S if leases else 0)
            orphan_age = age if all_still else max(age, ORPHAN_S)
            for kind, names in _deletable(folder, found, since, age, orphan_age).items():
                if names and not dry_run:
                    delete(folder, names)
                if names:
                    size = sum(found[each].size_bytes for each in names)
                    yield Removal(f"{history.name} {name}, {kind}", len(names), size)
            if name == VERSIONS and not dry_run and old_commits(folder) > MANY_COMMITS:
                clean_log(folder, partial(_delta_versions, keep))
    seen.record()


def _unlisted(folder: Path, recorded: set[str], keep: Callable[[], list[EarlierGeneration]]) -> dict[str, UnlistedFile]:
    """The files that a table does not list, except those `recorded` for copies and of generations that are read."""
    found = {file.name: file for file in unlisted_files(folder) if file.name not in recorded}
    for version in [each.delta_version for each in keep() if each.is_read] if found else ():
        for name in names_in(opened(folder, version)):
            found.pop(name, None)
    return found


def _deletable(
    folder: Path, found: Mapping[str, UnlistedFile], since: Mapping[str, float], age_s: float, orphan_age_s: float
) -> dict[str, set[str]]:
    """The files to delete, by the reason.

    Files without a record of their removal are deleted by the age of their contents. They can have been removed as
    recently as such records are kept, so while a lease is older than that, the time since which an expire job has found
    them counts too.
    """
    removed, expired = removed_files(folder, age_s) if found else (set[str](), set[str]())
    now = time.time()
    orphans = {
        name
        for name in found.keys() - removed
        if found[name].modified_at <= now - orphan_age_s and (age_s < TOMBSTONES_S or since[name] <= now - age_s)
    }
    return {"expired earlier": set(found.keys() & expired), "never committed": orphans}


def _earlier(lake: Lake, history: TableHistory, kept_from: Lsn) -> list[EarlierGeneration]:
    """The earlier generations that can still be read, and those in between."""
    bases = {span.base.lsn for span in spans_from(history, kept_from)}
    return earlier_generations(lake.path, history.path, bases)


def _delta_versions(generations: Callable[[], Sequence[EarlierGeneration]]) -> list[int]:
    return [each.delta_version for each in generations()]


def _all_still(lake: Lake, locks: ExitStack) -> bool:
    """Whether no process applies to or folds the lake; then none can start until the locks are released."""
    with ExitStack() as taken:
        try:
            for name in (WRITING, FOLDING):
                taken.enter_context(LakeLock(lake.path, name))
        except LakeInUse:
            return False
        locks.push(taken.pop_all())
    return True


def _log(lake: Lake, retained: Lsn, dry_run: bool) -> Iterator[Removal]:
    """Have the receiver remove log segments, and remove the commit index of removed segments below the retained LSN."""
    if not dry_run:
        with suppress(ReceiveFailed), ReceiveClient(lake.log) as client:
            applied_lsn = lake.cycle().applied_lsn
            client.applied(applied_lsn, needed_from(applied_lsn, leases_in_force(lake.path)))
    gone: dict[Path, int] = {}
    with suppress(LogError):
        gone = forget(lake.log, retained, dry_run=dry_run)
    if gone:
        yield Removal("commit index of the log, expired", len(gone), sum(gone.values()))
