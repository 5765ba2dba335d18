"""Read a catalog snapshot: the published tables as one database snapshot shows them, and the LSN at which it was taken.

A database snapshot is not an LSN, so a single catalog snapshot does not determine how the tables were defined at a
position: DDL may be logged below it and not be visible yet. Two catalog snapshots do. A transaction that changes a
definition holds its lock until it is visible, so `held`, which is read between the two, contains every such transaction
that could be invisible to both. If all transactions in `held` that may change a table are visible to the second, every
change of that table's definition that was committed up to the first one's LSN is visible to the second. If the
definition is also equal in both, it is that of every position up to that LSN.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from psycopg import sql

from tidemark.clock import Lsn, Snapshot, Xid8
from tidemark.errors import NotPermitted, ObjectMissing, TimedOut, UnexpectedSourceError
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import translated
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Catalog, PgType

_HERE = """
    select pg_current_snapshot()::text,
           case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() end::text,
           clock_timestamp()
"""

# Transactions with a lock that allows them to change a table's definition, its publication membership or a type.
_HELD = """
    select distinct own.transactionid::text::bigint,
           case when held.locktype = 'relation' then held.relation::bigint end,
           case when held.locktype = 'relation' then rows.oid::bigint
                when held.classid = 'pg_type'::regclass then held.objid::bigint end
      from pg_locks own join pg_locks held using (virtualtransaction)
      left join pg_type rows on held.locktype = 'relation' and rows.typrelid = held.relation
                            and rows.oid = any(%(types)s)
     where own.locktype = 'transactionid' and own.mode = 'ExclusiveLock' and own.granted and held.granted
       and held.mode in ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareUpdateExclusiveLock')
       and held.database = (select oid from pg_database where datname = current_database())
       and (held.locktype = 'relation' and (held.relation = any(%(tables)s) or rows.oid is not null)
            or held.locktype = 'object' and (held.classid = 'pg_publication'::regclass
                or held.classid = 'pg_type'::regclass and held.objid = any(%(types)s)))
"""


@dataclass(frozen=True, slots=True)
class Watched:
    """The oids of the tables that were known before, and of every type in them."""

    tables: Collection[int] = ()
    types: Collection[int] = ()


@dataclass(frozen=True, slots=True)
class DefinitionLock:
    """A lock with which a transaction may change a table, a type, or both; without either, a publication."""

    xid: Xid8
    table: int | None = None
    type: int | None = None


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """A catalog snapshot. `roots` contains the partitioned tables above the published ones.

    `empty` contains those of the requested tables that have no rows; for `held` see the module. On a standby `lsn` is
    the LSN replayed after the snapshot was taken and `replayed` the LSN replayed before it; on a primary `replayed` is
    None. Tables with `flaws` are not in `tables`.
    """

    snapshot: Snapshot
    lsn: Lsn
    time: datetime
    tables: Mapping[int, Fingerprint]
    roots: Mapping[int, Fingerprint]
    types: Mapping[int, PgType]
    empty: frozenset[int]
    held: tuple[DefinitionLock, ...]
    replayed: Lsn | None = None
    flaws: Mapping[int, str] = field(default_factory=dict)

    @property
    def unseen(self) -> tuple[DefinitionLock, ...]:
        """The locks of transactions that are not visible here. A definition is confirmed unless one of them is on it.

        A confirmed definition that is equal in an earlier catalog snapshot holds at every position up to its LSN.
        """
        return tuple(lock for lock in self.held if not self.snapshot.sees(lock.xid))


def take_look(
    session: Session, names: MirrorNames, watched: Watched, asked: Callable[[CatalogSnapshot], Iterable[int]]
) -> CatalogSnapshot:
    """Read a catalog snapshot. `asked` returns which of its tables must be checked for rows."""
    (full,) = session.row("select pg_snapshot_xmax(pg_current_snapshot())::text")
    reference = Xid8.parse(full)
    parameters = {"tables": list(watched.tables), "types": list(watched.types)}
    locks = session.rows(_HELD, parameters)
    held = tuple(DefinitionLock(reference.widen(xid), table, type_oid) for xid, table, type_oid in locks)
    replayed = replayed_by(session)
    with session.transaction():
        look = replace(look_within(session, names), held=held, replayed=replayed)
        empty = frozenset(oid for oid in asked(look) if _is_empty(session, look.tables[oid]))
    return replace(look, empty=empty)


def replayed_by(session: Session) -> Lsn | None:
    """Return the LSN up to which a standby has replayed, or None on a primary."""
    (lsn,) = session.row("select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() end::text")
    return None if lsn is None else Lsn.parse(lsn)


def look_within(session: Session, names: MirrorNames) -> CatalogSnapshot:
    """Read the catalog snapshot of the current transaction, which must have just begun, without `held`."""
    snapshot, lsn, time = session.row(_HERE)
    catalog = read_catalog(session)
    tables = _published(catalog, names)
    types = {column.type.oid: column.type for table in tables.values() for column in table.columns}
    roots = roots_of(catalog, tables)
    flaws = {table.oid: table.flaw for table in catalog.tables if table.flaw is not None}
    return CatalogSnapshot(
        Snapshot.parse(snapshot), Lsn.parse(lsn), time, tables, roots, types, frozenset(), (), flaws=flaws
    )


def _published(catalog: Catalog, names: MirrorNames) -> dict[int, Fingerprint]:
    found = (Fingerprint.of(table, names.all_publications) for table in catalog.tables if table.flaw is None)
    return {each.oid: each for each in found if each.memberships}


def roots_of(catalog: Catalog, tables: Iterable[int]) -> dict[int, Fingerprint]:
    """Return the partitioned tables above the given tables."""
    found = {root.oid: root for oid in tables for root in catalog.ancestors(catalog.by_oid[oid])}
    return {oid: Fingerprint.of(root, ()) for oid, root in found.items()}


def _is_empty(session: Session, table: Fingerprint) -> bool:
    """Whether the table has no rows in this snapshot.

    A TRUNCATE or rewrite after the snapshot was taken makes the table appear empty; the changed filenode reveals that.
    """
    query = sql.SQL("select exists (select from only {}), pg_relation_filenode({})").format(
        sql.Identifier(table.schema, table.name), sql.Literal(table.oid)
    )
    try:
        with translated(f"checking whether {table.schema}.{table.name} is empty"), session.connection.transaction():
            found = session.connection.execute(query).fetchone()
    except (NotPermitted, TimedOut, ObjectMissing, UnexpectedSourceError):
        return False  # the copy of this table reports why it cannot be read
    return found is not None and not found[0] and found[1] == table.filenode
