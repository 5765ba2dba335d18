"""The state of a clone, in schema `tidemark` at the target: what was copied, from which base, and what is applied.

It is changed in the transactions that change the tables, so it always fits them. One process at a time writes a clone:
it holds an advisory lock at the target, and each step expects the progress that it left itself.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from psycopg import sql
from psycopg.types.json import Jsonb

from tidemark.clock import Boundary, Lsn
from tidemark.errors import NotTheSameSource, ObjectMissing, TargetInUse
from tidemark.pipeline.copy.parts import Part
from tidemark.postgres.identity import Identity
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import translated
from tidemark.schema.fingerprint import Fingerprint, from_plain, to_plain
from tidemark.target.differences import TableRepair

SCHEMA = "tidemark"
LOCK_WAIT_S = 2.0
RECORDED = 1000  # keys of repaired rows, of one table and batch
_LOCK = zlib.crc32(b"tidemark clone") - (1 << 31)
_STOP = "Stop the other process, and retry the command."
_CREATED = (
    "create schema if not exists tidemark",
    """create table if not exists tidemark.clones (
        name text primary key,
        system_identifier text not null,
        database_oid oid not null,
        database text not null,
        phase text not null,
        applied_lsn pg_lsn,
        changed_at timestamptz not null default clock_timestamp()
    )""",
    """create table if not exists tidemark.tables (
        clone text not null references tidemark.clones on delete cascade,
        oid oid not null,
        name text not null,
        definition jsonb not null,
        base_lsn pg_lsn,
        excluded pg_lsn[] not null default '{}',
        run text,
        rows bigint not null default 0,
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
)
_CLONE = """
    select system_identifier, database_oid::bigint, database, phase, applied_lsn::text
    from tidemark.clones where name = %s
"""
_TABLES = """
    select oid::bigint, definition, base_lsn::text, excluded::text[], rows from tidemark.tables where clone = %s
"""
_REPAIRED = "select coalesce(sum(rows), 0)::bigint from tidemark.repairs where clone = %s"


class Phase(Enum):
    """How far a clone is: each phase begins when the one before is complete."""

    DEFINITIONS = "definitions"
    COPY = "copy"
    INDEXES = "indexes"
    FOLLOW = "follow"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True)
class ClonedTable:
    """A table of a clone. `base` is the boundary of its copy; None if the copy is not complete."""

    definition: Fingerprint
    base: Boundary | None
    rows: int

    @property
    def name(self) -> str:
        """`schema.table`, for messages."""
        return f"{self.definition.schema}.{self.definition.name}"


@dataclass(frozen=True, slots=True)
class CloneState:
    """The recorded state. `applied_lsn` is None until following begins; `repaired` is the number of repaired rows."""

    phase: Phase
    applied_lsn: Lsn | None
    tables: Mapping[int, ClonedTable]
    repaired: int = 0

    @property
    def needed_lsn(self) -> Lsn | None:
        """The LSN above which the log must have all changes: what is applied, or the lowest of the copies.

        None if nothing is copied.
        """
        floors = [table.base.floor for table in self.tables.values() if table.base is not None]
        return self.applied_lsn if self.applied_lsn is not None else min(floors, default=None)

    @property
    def consistent_lsn(self) -> Lsn:
        """The LSN from which on all tables are as of one position."""
        return max((table.base.lsn for table in self.tables.values() if table.base is not None), default=Lsn.ZERO)


class CloneRecord:
    """Reads and writes the state of the clone `name` by a session at the target."""

    def __init__(self, session: Session, name: str) -> None:
        self._session, self.name = session, name

    def lock(self) -> None:
        """Take the lock of the clone until the session ends; raise TargetInUse if another session has it.

        A server takes a moment to end a session that was closed, so the lock is tried for a while.
        """
        deadline = time.monotonic() + LOCK_WAIT_S
        while not self._session.row("select pg_try_advisory_lock(%s, hashtext(%s))", [_LOCK, self.name])[0]:
            if time.monotonic() > deadline:
                raise TargetInUse(f"another process writes clone {self.name} at the target", _STOP)
            time.sleep(LOCK_WAIT_S / 20)

    def create(self) -> None:
        """Create the schema and its tables, unless they exist."""
        with self._session.transaction(read_only=False):
            for statement in _CREATED:
                self._session.execute(sql.SQL("{}").format(sql.SQL(statement)), "creating schema tidemark")

    @property
    def exists(self) -> bool:
        """Whether the target has the schema."""
        return bool(self._session.row("select to_regclass('tidemark.clones') is not null")[0])

    def begin(self, source: Identity) -> None:
        """Record a new clone of this source."""
        insert = "insert into tidemark.clones (name, system_identifier, database_oid, database, phase)"
        self._run(
            f"{insert} values (%s, %s, %s, %s, %s)",
            self.name, str(source.system_identifier), source.database_oid, source.database, Phase.DEFINITIONS.value,
        )  # fmt: skip

    def read(self, source: Identity) -> CloneState | None:
        """Return the state; None if there is no such clone. Raises an error if it is a clone of another source."""
        found = self._session.rows(_CLONE, [self.name])
        if not found:
            return None
        ((system, database_oid, database, phase, applied),) = found
        if (system, database_oid) != (str(source.system_identifier), source.database_oid):
            raise NotTheSameSource(
                f"clone {self.name} at the target is one of database {database!r} of system {system}, not of {source}",
                "Use that source, or another `--name`.",
            )
        (repaired,) = self._session.row(_REPAIRED, [self.name])
        return CloneState(Phase(phase), Lsn.parse(applied) if applied else None, self._tables(), repaired)

    def existing(self, source: Identity) -> CloneState:
        """Return the state of a clone that must exist."""
        state = self.read(source)
        if state is None:
            raise ObjectMissing(
                f"there is no clone {self.name} at the target", "Run `tidemark clone SOURCE TARGET` to create it."
            )
        return state

    def _tables(self) -> dict[int, ClonedTable]:
        rows = self._session.rows(_TABLES, [self.name])
        return {
            oid: ClonedTable(from_plain(definition), _boundary(base, excluded), count)
            for oid, definition, base, excluded, count in rows
        }

    def set_phase(self, phase: Phase) -> None:
        """Record that a phase begins."""
        self._run("update tidemark.clones set phase = %s, changed_at = now() where name = %s", phase.value, self.name)

    def add_table(self, definition: Fingerprint) -> None:
        """Record a table that is to be copied; its copy has not begun."""
        self._run(
            "insert into tidemark.tables (clone, oid, name, definition) values (%s, %s, %s, %s) on conflict "
            "(clone, oid) do update set definition = excluded.definition, name = excluded.name",
            self.name, definition.oid, f"{definition.schema}.{definition.name}", Jsonb(to_plain(definition)),
        )  # fmt: skip

    def set_copied(self, oid: int, base: Boundary, rows: int) -> None:
        """Record that a table has the rows of its copy."""
        self._run(
            "update tidemark.tables set base_lsn = %s, excluded = %s::pg_lsn[], rows = %s "
            "where clone = %s and oid = %s",
            str(base.lsn), [str(lsn) for lsn in sorted(base.excluded)], rows, self.name, oid,
        )  # fmt: skip

    def advance(self, before: Lsn | None, after: Lsn) -> None:
        """Record progress; raise TargetInUse if the recorded progress is not `before`."""
        changed = self._run(
            "update tidemark.clones set applied_lsn = %s, changed_at = now() where name = %s "
            "and applied_lsn is not distinct from %s::pg_lsn",
            str(after), self.name, str(before) if before is not None else None,
        )  # fmt: skip
        if changed != 1:
            raise TargetInUse(f"another process has changed the progress of clone {self.name}", _STOP)

    def add_repair(self, repair: TableRepair, lsn: Lsn) -> None:
        """Record rows that were repaired when the changes up to `lsn` were applied."""
        self._run(
            "insert into tidemark.repairs (clone, name, lsn, rows, missing, extra) values (%s, %s, %s, %s, %s, %s)",
            self.name, repair.table, str(lsn), repair.rows, *repair.named(RECORDED),
        )  # fmt: skip

    def _run(self, statement: str, *parameters: Any) -> int:
        """Run a statement; return how many rows it changed."""
        with translated("recording the state of the clone"):
            return self._session.connection.execute(statement.encode(), parameters).rowcount


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
        """Return the number of rows of a part that is recorded since the copy of its table began, else None."""
        query = "select rows from tidemark.parts where clone = %s and oid = %s and first_page = %s"
        found = _rows(session, query, self.clone, table.oid, part.first)
        return found[0][0] if found else None


def _rows(session: Session, query: str, *parameters: Any) -> list[Any]:
    with translated("recording the state of the clone"):
        return session.connection.execute(query.encode(), parameters).fetchall()


def _boundary(base: str | None, excluded: list[str]) -> Boundary | None:
    return Boundary(Lsn.parse(base), frozenset(map(Lsn.parse, excluded))) if base is not None else None
