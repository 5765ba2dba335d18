"""The state of a clone, in schema `tidemark` at the target: what was copied, from which base, and what is applied.

It is changed in the transactions that change the tables, so it always fits them. One process at a time writes a clone:
it holds an advisory lock at the target, and each step expects the progress that it left itself.

Another process can hold the clone at an LSN (`CloneHold`): no change above it is applied while that process runs.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import uuid4

from psycopg import sql
from psycopg.types.json import Jsonb

from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.errors import NotTheSameSource, ObjectMissing, TargetInUse, TidemarkError
from tidemark.pipeline.copy.parts import Part
from tidemark.postgres.identity import Identity
from tidemark.postgres.requirements import Mode
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import translated
from tidemark.reads.digests import RowDigest
from tidemark.schema.fingerprint import Fingerprint, from_plain, to_plain
from tidemark.schema.selection import Pattern, Selection
from tidemark.schema.table import Persistence
from tidemark.target.differences import TableRepair

RECORDED = 1000  # keys of repaired rows, of one table and batch
LOCK_WAIT_S, _LOOK_S = 1.0, 0.05
_LOCK, _HOLD = (zlib.crc32(each) - (1 << 31) for each in (b"tidemark clone", b"tidemark hold"))
_STOP = "Stop the other process, and retry the command."
_CREATED = (
    "create schema if not exists tidemark",
    """create table if not exists tidemark.clones (
        name text primary key,
        system_identifier text not null,
        database_oid oid not null,
        database text not null,
        mode text not null,
        phase text not null,
        id text not null,
        selected text[] not null,
        excluded text[] not null,
        applied_lsn pg_lsn,
        received_lsn pg_lsn,
        hold_lsn pg_lsn,
        snapshot text,
        timeline int,
        changed_at timestamptz not null default clock_timestamp()
    )""",
    """create table if not exists tidemark.tables (
        clone text not null references tidemark.clones on delete cascade,
        oid oid not null,
        name text not null,
        definition jsonb not null,
        base_lsn pg_lsn,
        excluded pg_lsn[] not null default '{}',
        snapshot text,
        timeline int,
        run text,
        rows bigint not null default 0,
        digest numeric(20),
        primary key (clone, oid)
    )""",
    """create table if not exists tidemark.parts (
        clone text not null,
        oid oid not null,
        first_page bigint not null,
        rows bigint not null,
        primary key (clone, oid, first_page),
        foreign key (clone, oid) references tidemark.tables on delete cascade
    )""",
    """create table if not exists tidemark.repairs (
        clone text not null references tidemark.clones on delete cascade,
        name text not null,
        lsn pg_lsn not null,
        rows bigint not null,
        missing text[] not null,
        extra text[] not null,
        repaired_at timestamptz not null default now()
    )""",
    """create table if not exists tidemark.large_objects (
        clone text not null references tidemark.clones on delete cascade,
        oid oid not null,
        primary key (clone, oid)
    )""",
)
_CLONE = """
    select system_identifier, database_oid::bigint, database, mode, phase, applied_lsn::text, hold_lsn::text, snapshot,
           timeline, id, selected, excluded
    from tidemark.clones where name = %s
"""
_ADVANCE = """
    update tidemark.clones set applied_lsn = %s, received_lsn = %s, changed_at = now()
    where name = %s and applied_lsn is not distinct from %s::pg_lsn
    and (hold_lsn is null or hold_lsn >= %s::pg_lsn)
"""
_PROGRESS = "select applied_lsn::text from tidemark.clones where name = %s"
_CLONES = """
    select name, system_identifier, database_oid::bigint, database, mode, phase, applied_lsn::text, received_lsn::text,
           changed_at, exists (
               select from pg_locks where locktype = 'advisory' and granted and objsubid = 2
               and database = (select oid from pg_database where datname = current_database())
               and classid = (%s::bigint & 4294967295)::oid and objid = (hashtext(name)::bigint & 4294967295)::oid
           )
    from tidemark.clones order by name
"""
_COUNTS = "select name, base_lsn is not null, rows from tidemark.tables where clone = %s order by name"
_TABLES = """
    select oid::bigint, definition, base_lsn::text, excluded::text[], snapshot, timeline, rows, digest
    from tidemark.tables where clone = %s
"""
_POLLED = """
    update tidemark.clones set applied_lsn = %s, snapshot = %s, timeline = %s, changed_at = now()
    where name = %s and snapshot is not distinct from %s
"""
_DURABLE = """
    select set_config('synchronous_commit', 'local', false) where current_setting('synchronous_commit') = 'off'
"""
_WATERMARK = "select applied_lsn::text, snapshot, timeline from tidemark.clones where name = %s"
_HAS_ROWS = sql.SQL("select exists (select from only {})")
_REPAIRED = "select coalesce(sum(rows), 0)::bigint from tidemark.repairs where clone = %s"


def commit_durably(session: Session) -> None:
    """Have the commits of a session survive a crash of the target, also if its role does not wait for that.

    The log, the slot and the publication are removed when the target has recorded that it does not need them.
    """
    session.rows(_DURABLE)


class ClonePhase(Enum):
    """How far a clone is: each phase begins when the one before is complete.

    In phase COMPLETION, foreign keys and triggers may exist, so no changes are applied and no poll writes.
    """

    DEFINITIONS = "definitions"
    COPY = "copy"
    INDEXES = "indexes"
    FOLLOW = "follow"
    COMPLETION = "completion"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class PollWatermark:
    """What a poll or its copy has read: a snapshot, the LSN of the source at that time, and its timeline."""

    snapshot: Snapshot
    lsn: Lsn
    timeline: int


@dataclass(frozen=True, slots=True)
class ClonedTable:
    """A table of a clone. `base` is the boundary of its copy; None if the copy is not complete.

    In poll mode, `watermark` is that of the copy. `rows` and `digest` are those that the copy or the last poll left;
    `digest`, of the keys or of rows without a key, is None until the first poll.
    """

    definition: Fingerprint
    base: Boundary | None
    rows: int
    watermark: PollWatermark | None = None
    digest: RowDigest | None = None

    @property
    def name(self) -> str:
        """`schema.table`, for messages."""
        return self.definition.qualified

    @property
    def identifier(self) -> sql.Identifier:
        """The name for SQL."""
        return sql.Identifier(self.definition.schema, self.definition.name)

    @property
    def is_unlogged(self) -> bool:
        """Whether the table is unlogged at the source."""
        return self.definition.persistence is Persistence.UNLOGGED


@dataclass(frozen=True, slots=True)
class CloneState:
    """The recorded state. `applied_lsn` is None until following begins; `hold_lsn` is the LSN of a hold, if any.

    In poll mode, `watermark` is that of the last poll. `id` distinguishes the clone from others of the same name.
    """

    mode: Mode
    phase: ClonePhase
    applied_lsn: Lsn | None
    tables: Mapping[int, ClonedTable]
    hold_lsn: Lsn | None = None
    watermark: PollWatermark | None = None
    repaired: int = 0
    id: str = ""
    selection: Selection = field(default_factory=Selection)

    @property
    def needed_lsn(self) -> Lsn | None:
        """The LSN above which the log must have all changes: what is applied, or the lowest of the copies.

        None if nothing is copied.
        """
        floors = [table.base.floor for table in self.tables.values() if table.base is not None]
        return self.applied_lsn if self.applied_lsn is not None else min(floors, default=None)

    @property
    def consistent_lsn(self) -> Lsn:
        """The LSN from which on all tables are as of one position; unlogged ones are copied at the end."""
        copied = (table for table in self.tables.values() if not table.is_unlogged)
        return max((table.base.lsn for table in copied if table.base is not None), default=Lsn.ZERO)

    @property
    def unlogged(self) -> list[ClonedTable]:
        """The unlogged tables, of which the stream has no changes."""
        return [table for table in self.tables.values() if table.is_unlogged]


@dataclass(frozen=True, slots=True)
class CloneSummary:
    """A clone at a target. Each of `tables` has its name, whether it is copied, and the number of copied rows."""

    name: str
    source: tuple[str, int]
    database: str
    mode: Mode
    phase: ClonePhase
    applied_lsn: Lsn | None
    received_lsn: Lsn | None
    changed_at: datetime
    is_written: bool
    tables: tuple[tuple[str, bool, int], ...]

    @property
    def is_followed(self) -> bool:
        """Whether a process applies the stream to it now."""
        return self.may_follow and self.is_written

    @property
    def may_follow(self) -> bool:
        """Whether a process can apply the stream to it: it is copied, and not completed or polled."""
        return self.mode is Mode.LOGICAL and self.phase is ClonePhase.FOLLOW

    def is_of(self, source: Identity) -> bool:
        """Whether it is a clone of this source."""
        return self.source == (str(source.system_identifier), source.database_oid)


def read_clones(session: Session) -> list[CloneSummary]:
    """Return all clones at a target, by name."""
    if session.row("select to_regclass('tidemark.clones') is null")[0]:
        return []
    found = session.rows(_CLONES, [_LOCK])
    return [
        CloneSummary(
            name, (system, oid), database, Mode(mode), ClonePhase(phase), _lsn(applied), _lsn(received), changed_at,
            written,
            tuple((table, copied, rows) for table, copied, rows in session.rows(_COUNTS, [name])),
        )
        for name, system, oid, database, mode, phase, applied, received, changed_at, written in found
    ]  # fmt: skip


class Held(Exception):
    """The clone is held at an LSN below the progress that was to be recorded."""


class CloneRecord:
    """Reads and writes the state of the clone `name` by a session at the target."""

    def __init__(self, session: Session, name: str) -> None:
        self._session, self.name = session, name

    def lock(self) -> None:
        """Take the lock of the clone until `unlock`; raise TargetInUse if another session has it.

        A server releases the lock of a session some time after its client has closed it, or was killed.
        """
        until = time.monotonic() + LOCK_WAIT_S
        while not self._session.row("select pg_try_advisory_lock(%s, hashtext(%s))", [_LOCK, self.name])[0]:
            if time.monotonic() > until:
                raise TargetInUse(f"another process writes clone {self.name} at the target", _STOP)
            time.sleep(_LOOK_S)

    def unlock(self) -> None:
        """Release the lock, if the connection still exists."""
        with suppress(TidemarkError):
            self._session.row("select pg_advisory_unlock(%s, hashtext(%s))", [_LOCK, self.name])

    def create(self) -> None:
        """Create the schema and its tables, unless they exist."""
        with self._session.transaction(read_only=False):
            for statement in _CREATED:
                self._session.execute(sql.SQL("{}").format(sql.SQL(statement)), "creating schema tidemark")

    @property
    def exists(self) -> bool:
        """Whether the target has the schema."""
        return bool(self._session.row("select to_regclass('tidemark.clones') is not null")[0])

    @property
    def mode(self) -> Mode | None:
        """The mode in which the clone was begun; None if there is no such clone."""
        found = self._session.rows("select mode from tidemark.clones where name = %s", [self.name])
        return Mode(found[0][0]) if found else None

    @property
    def watermark(self) -> PollWatermark | None:
        """The watermark of the last poll; None if there is none."""
        found = self._session.rows(_WATERMARK, [self.name])
        return _watermark(_lsn(found[0][0]), *found[0][1:]) if found else None

    def begin(self, source: Identity, mode: Mode = Mode.LOGICAL, selection: Selection | None = None) -> str:
        """Record a new clone of the selected tables of this source; return its `id`."""
        insert = "insert into tidemark.clones (name, system_identifier, database_oid, database, mode, phase"
        unique, chosen = uuid4().hex, selection or Selection()
        self._run(
            f"{insert}, id, selected, excluded) values (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            self.name, str(source.system_identifier), source.database_oid, source.database, mode.value,
            ClonePhase.DEFINITIONS.value, unique,
            *([each.text for each in part] for part in (chosen.take, chosen.leave)),
        )  # fmt: skip
        return unique

    def read(self, source: Identity) -> CloneState | None:
        """Return the state; None if there is no such clone. Raises an error if it is a clone of another source."""
        found = self._session.rows(_CLONE, [self.name])
        if not found:
            return None
        ((system, database_oid, database, mode, phase, applied, hold, *watermark, unique, take, leave),) = found
        if (system, database_oid) != (str(source.system_identifier), source.database_oid):
            raise NotTheSameSource(
                f"clone {self.name} at the target is one of database {database!r} of system {system}, not of {source}",
                "Use that source, or another `--name`.",
            )
        applied_lsn = _lsn(applied)
        polled = _watermark(applied_lsn, *watermark)
        (repaired,) = self._session.row(_REPAIRED, [self.name])
        selection = Selection(tuple(map(Pattern, take)), tuple(map(Pattern, leave)))
        phase, lsn = ClonePhase(phase), _lsn(hold)
        return CloneState(Mode(mode), phase, applied_lsn, self._tables(), lsn, polled, repaired, unique, selection)

    def existing(self, source: Identity) -> CloneState:
        """Return the state of a clone that must exist."""
        state = self.read(source)
        if state is None:
            raise ObjectMissing(
                f"there is no clone {self.name} at the target", "Run `tidemark clone SOURCE TARGET` to create it."
            )
        return state

    def _tables(self) -> dict[int, ClonedTable]:
        tables = {}
        for oid, definition, base, excluded, snapshot, timeline, count, digest in self._session.rows(
            _TABLES, [self.name]
        ):
            boundary = _boundary(base, excluded)
            watermark = _watermark(boundary.lsn if boundary else None, snapshot, timeline)
            kept = RowDigest(count, int(digest)) if digest is not None else None
            tables[oid] = ClonedTable(from_plain(definition), boundary, count, watermark, kept)
        return tables

    def set_phase(self, phase: ClonePhase) -> None:
        """Record that a phase begins."""
        self._run("update tidemark.clones set phase = %s, changed_at = now() where name = %s", phase.value, self.name)

    def add_table(self, definition: Fingerprint) -> None:
        """Record a table that is to be copied; its copy has not begun."""
        self._run(
            "insert into tidemark.tables (clone, oid, name, definition) values (%s, %s, %s, %s) on conflict "
            "(clone, oid) do update set definition = excluded.definition, name = excluded.name",
            self.name, definition.oid, definition.qualified, Jsonb(to_plain(definition)),
        )  # fmt: skip

    def set_copied(self, oid: int, base: Boundary, rows: int, watermark: PollWatermark | None = None) -> None:
        """Record that a table has the rows of its copy, in poll mode with the watermark of its snapshot."""
        self._run(
            "update tidemark.tables set base_lsn = %s, excluded = %s::pg_lsn[], rows = %s, snapshot = %s, "
            "timeline = %s, digest = null where clone = %s and oid = %s",
            str(base.lsn), [str(lsn) for lsn in sorted(base.excluded)], rows,
            *((str(watermark.snapshot), watermark.timeline) if watermark is not None else (None, None)),
            self.name, oid,
        )  # fmt: skip

    def emptied(self, unlogged: Iterable[ClonedTable]) -> list[ClonedTable]:
        """The unlogged tables that have no rows although rows were copied: a crash of the target empties them."""
        return [
            table
            for table in unlogged
            if table.rows and not self._session.row(_HAS_ROWS.format(table.identifier).as_string(None))[0]
        ]

    def advance(self, before: Lsn | None, after: Lsn, received: Lsn) -> None:
        """Record progress; raise Held if the clone is held before it, TargetInUse if `before` is not recorded."""
        expected = str(before) if before is not None else None
        if self._run(_ADVANCE, str(after), str(received), self.name, expected, str(after)) == 1:
            return
        (applied,) = self._session.row(_PROGRESS, [self.name])
        if _lsn(applied) == before:
            raise Held
        raise TargetInUse(f"another process has changed the progress of clone {self.name}", _STOP)

    def hold_lsn(self) -> Lsn | None:
        """Return the LSN at which the clone is held. The hold of a process that has ended is removed."""
        (hold,) = self._session.row("select hold_lsn::text from tidemark.clones where name = %s", [self.name])
        if hold is None:
            return None
        (free,) = self._session.row("select pg_try_advisory_lock(%s, hashtext(%s))", [_HOLD, self.name])
        if free:
            self._run("update tidemark.clones set hold_lsn = null where name = %s", self.name)
            self._session.row("select pg_advisory_unlock(%s, hashtext(%s))", [_HOLD, self.name])
        return None if free else _lsn(hold)

    def set_polled(self, before: PollWatermark | None, after: PollWatermark, digests: Mapping[int, RowDigest]) -> None:
        """Record a poll, and the digests of tables that are no longer as recorded.

        Raises TargetInUse if the recorded poll is not `before`.
        """
        changed = self._run(
            _POLLED, str(after.lsn), str(after.snapshot), after.timeline, self.name,
            str(before.snapshot) if before is not None else None,
        )  # fmt: skip
        if changed != 1:
            raise TargetInUse(f"another process has changed the progress of clone {self.name}", _STOP)
        for oid, digest in digests.items():
            self._run(
                "update tidemark.tables set rows = %s, digest = %s where clone = %s and oid = %s",
                digest.rows, digest.total, self.name, oid,
            )  # fmt: skip

    def add_repair(self, repair: TableRepair, lsn: Lsn) -> None:
        """Record rows that were repaired when the changes up to `lsn` were applied."""
        self._run(
            "insert into tidemark.repairs (clone, name, lsn, rows, missing, extra) values (%s, %s, %s, %s, %s, %s)",
            self.name, repair.table, str(lsn), repair.rows, *repair.named(RECORDED),
        )  # fmt: skip

    def large_objects(self) -> frozenset[int]:
        """The OIDs of the large objects that the clone created."""
        found = self._session.rows("select oid::bigint from tidemark.large_objects where clone = %s", [self.name])
        return frozenset(oid for (oid,) in found)

    def add_large_objects(self, oids: Iterable[int]) -> None:
        """Record large objects that the clone creates; those that were removed at the target are recorded already."""
        insert = "insert into tidemark.large_objects select %s, unnest(%s::oid[]) on conflict do nothing"
        self._run(insert, self.name, list(oids))

    def remove_large_objects(self, oids: Iterable[int]) -> None:
        """Remove the records of large objects that the clone removes."""
        self._run("delete from tidemark.large_objects where clone = %s and oid = any(%s::oid[])", self.name, list(oids))

    def _run(self, statement: str, *parameters: Any) -> int:
        """Run a statement; return how many rows it changed."""
        with translated("recording the state of the clone"):
            return self._session.connection.execute(statement.encode(), parameters).rowcount


class CloneHold:
    """Holds the clone `name` at an LSN by a session at the target, until `release` or the end of the session."""

    def __init__(self, session: Session, name: str) -> None:
        self._session, self._name = session, name
        (taken,) = session.row("select pg_try_advisory_lock(%s, hashtext(%s))", [_HOLD, name])
        if not taken:
            raise TargetInUse(
                f"another comparison holds clone {name} at the target", "Wait until it has begun to compare, and retry."
            )

    def at_once(self) -> Lsn | None:
        """Hold the clone where it is, and return that LSN; None if nothing has been applied yet."""
        query = (
            "update tidemark.clones set hold_lsn = coalesce(applied_lsn, '0/1') where name = %s "
            "returning applied_lsn::text"
        )
        (applied,) = _rows(self._session, query, self._name)[0]
        return _lsn(applied)

    def at(self, lsn: Lsn) -> None:
        """Hold the clone at an LSN that it has not passed."""
        query = "update tidemark.clones set hold_lsn = %s where name = %s returning name"
        _rows(self._session, query, str(lsn), self._name)

    def applied_lsn(self) -> Lsn | None:
        """Return the LSN up to which the clone has all changes."""
        (applied,) = self._session.row(_PROGRESS, [self._name])
        return _lsn(applied)

    def release(self) -> None:
        """End the hold."""
        query = "update tidemark.clones set hold_lsn = null where name = %s returning name"
        _rows(self._session, query, self._name)
        self._session.row("select pg_advisory_unlock(%s, hashtext(%s))", [_HOLD, self._name])


@dataclass(frozen=True, slots=True)
class PartRecorder:
    """Records the parts of copies in the transactions that write them, for one run of a process.

    If another run begins the table again, the parts of this one fail, so no row is stored twice.
    """

    clone: str
    run: str

    def is_begun(self, session: Session, table: Fingerprint) -> bool:
        """Whether a copy of the table has begun, now or earlier: if so, its rows may be removed."""
        query = "select from tidemark.tables where clone = %s and oid = %s and run is not null"
        return bool(_rows(session, query, self.clone, table.oid))

    def begin(self, session: Session, table: Fingerprint, parts: int) -> None:  # noqa: ARG002 - of the interface
        """Record that a copy of the table begins, and remove the records of its parts."""
        _rows(session, "delete from tidemark.parts where clone = %s and oid = %s returning oid", self.clone, table.oid)
        update = "update tidemark.tables set run = %s, base_lsn = null where clone = %s and oid = %s returning oid"
        if not _rows(session, update, self.run, self.clone, table.oid):
            raise TargetInUse(f"table {table.name} is no longer part of clone {self.clone}", _STOP)

    def add(self, session: Session, table: Fingerprint, part: Part, rows: int) -> None:
        """Record that a part is copied; an error if it is recorded already, or another run has begun the table."""
        ours = "select from tidemark.tables where clone = %s and oid = %s and run = %s for share"
        if not _rows(session, ours, self.clone, table.oid, self.run):
            raise TargetInUse(f"another process copies table {table.name} into the target", _STOP)
        insert = "insert into tidemark.parts values (%s, %s, %s, %s) returning oid"
        _rows(session, insert, self.clone, table.oid, part.first, rows)

    def rows(self, session: Session, table: Fingerprint, part: Part) -> int | None:
        """Return the number of rows of a part that this run has recorded, else None.

        A part that an earlier run has recorded has the rows of an earlier snapshot.
        """
        query = (
            "select p.rows from tidemark.parts p join tidemark.tables t using (clone, oid) "
            "where clone = %s and oid = %s and first_page = %s and run = %s"
        )
        found = _rows(session, query, self.clone, table.oid, part.first, self.run)
        return found[0][0] if found else None


def _rows(session: Session, query: str, *parameters: Any) -> list[Any]:
    with translated("recording the state of the clone"):
        return session.connection.execute(query.encode(), parameters).fetchall()


def _lsn(text: str | None) -> Lsn | None:
    return Lsn.parse(text) if text is not None else None


def _watermark(lsn: Lsn | None, snapshot: str | None, timeline: int | None) -> PollWatermark | None:
    if lsn is None or snapshot is None or timeline is None:
        return None
    return PollWatermark(Snapshot.parse(snapshot), lsn, timeline)


def _boundary(base: str | None, excluded: list[str]) -> Boundary | None:
    return Boundary(Lsn.parse(base), frozenset(map(Lsn.parse, excluded))) if base is not None else None
