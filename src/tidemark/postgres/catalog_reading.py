"""Reading of catalog snapshots: the published tables as one database snapshot shows them, and the LSN of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from psycopg import sql

from tidemark.clock import Lsn, Snapshot, Xid8
from tidemark.errors import NotPermitted, ObjectMissing, TimedOut, UnexpectedSourceError
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import translated
from tidemark.schema.catalog_snapshot import CatalogSnapshot, DefinitionLock, WatchedObjects, roots_of
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Catalog

_POSITION = """
    select pg_current_snapshot()::text,
           case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() end::text,
           clock_timestamp()
"""

# Transactions with a lock that allows them to change a table's definition, its publication membership or a type. Of
# statements on schemas, only ALTER SCHEMA … RENAME keeps its lock on pg_namespace; it locks no table.
_HELD = """
    select distinct own.transactionid::text::bigint,
           case when held.locktype = 'relation' and held.relation <> 'pg_namespace'::regclass
                then held.relation::bigint end,
           case when held.locktype = 'relation' then rows.oid::bigint
                when held.classid = 'pg_type'::regclass then held.objid::bigint end
      from pg_locks own join pg_locks held using (virtualtransaction)
      left join pg_type rows on held.locktype = 'relation' and rows.typrelid = held.relation
                            and rows.oid = any(%(types)s)
     where own.locktype = 'transactionid' and own.mode = 'ExclusiveLock' and own.granted and held.granted
       and held.database = (select oid from pg_database where datname = current_database())
       and (held.mode in ('AccessExclusiveLock', 'ExclusiveLock', 'ShareRowExclusiveLock', 'ShareUpdateExclusiveLock')
            and (held.locktype = 'relation' and (held.relation = any(%(tables)s) or rows.oid is not null)
                 or held.locktype = 'object' and (held.classid = 'pg_publication'::regclass
                     or held.classid = 'pg_type'::regclass and held.objid = any(%(types)s)))
            or held.locktype = 'relation' and held.relation = 'pg_namespace'::regclass
            and held.mode = 'RowExclusiveLock')
"""


def read_catalog_snapshot(
    session: Session, names: MirrorNames, watched: WatchedObjects, asked: Callable[[CatalogSnapshot], Iterable[int]]
) -> CatalogSnapshot:
    """Read a catalog snapshot. `asked` returns which of its tables must be checked for rows."""
    (full,) = session.row("select pg_snapshot_xmax(pg_current_snapshot())::text")
    reference = Xid8.parse(full)
    parameters = {"tables": list(watched.tables), "types": list(watched.types)}
    locks = session.rows(_HELD, parameters)
    held = tuple(DefinitionLock(reference.widen(xid), table, type_oid) for xid, table, type_oid in locks)
    replayed = replayed_by(session)
    with session.transaction():
        catalog = replace(read_within(session, names), held=held, replayed=replayed)
        empty = frozenset(oid for oid in asked(catalog) if _is_empty(session, catalog.tables[oid]))
    return replace(catalog, empty=empty)


def replayed_by(session: Session) -> Lsn | None:
    """Return the LSN up to which a standby has replayed, or None on a primary."""
    (lsn,) = session.row("select case when pg_is_in_recovery() then pg_last_wal_replay_lsn() end::text")
    return None if lsn is None else Lsn.parse(lsn)


def read_position(session: Session) -> tuple[Snapshot, Lsn, datetime]:
    """Read the snapshot of the current transaction, and the LSN and the time of the server."""
    snapshot, lsn, time = session.row(_POSITION)
    return Snapshot.parse(snapshot), Lsn.parse(lsn), time


def read_within(session: Session, names: MirrorNames) -> CatalogSnapshot:
    """Read the catalog snapshot of the current transaction, which must have just begun, without `held`."""
    snapshot, lsn, time = read_position(session)
    catalog = read_catalog(session)
    tables = _published(catalog, names)
    types = {column.type.oid: column.type for table in tables.values() for column in table.columns}
    roots = roots_of(catalog, tables)
    flaws = {table.oid: table.flaw for table in catalog.tables if table.flaw is not None}
    return CatalogSnapshot(snapshot, lsn, time, tables, roots, types, frozenset(), (), flaws=flaws)


def _published(catalog: Catalog, names: MirrorNames) -> dict[int, Fingerprint]:
    found = (Fingerprint.of(table, names.all_publications) for table in catalog.tables if table.flaw is None)
    return {each.oid: each for each in found if each.memberships}


def _is_empty(session: Session, table: Fingerprint) -> bool:
    """Whether the table has no rows in this snapshot.

    A TRUNCATE or rewrite after the snapshot was taken makes the table appear empty; the changed filenode reveals that.
    """
    query = sql.SQL("select exists (select from only {}), pg_relation_filenode({})").format(
        sql.Identifier(table.schema, table.name), sql.Literal(table.oid)
    )
    try:
        with translated(f"checking whether {table.qualified} is empty"), session.connection.transaction():
            found = session.connection.execute(query).fetchone()
    except (NotPermitted, TimedOut, ObjectMissing, UnexpectedSourceError):
        return False  # the copy of this table reports why it cannot be read
    return found is not None and not found[0] and found[1] == table.filenode
