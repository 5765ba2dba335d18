"""The present of the source as a session sees it: its snapshot, the LSN, and the table definitions.

All of it is read in one transaction, so no other catalog snapshot is needed: a table can be read if its definition
there is the last one in the lake.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg

from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, SourceError
from tidemark.lake.lake import Lake
from tidemark.log.disk import Disk
from tidemark.log.mirror import read_mirror
from tidemark.log.reader import LogReader
from tidemark.mirror.open_lake import OpenLake
from tidemark.postgres.catalog_reading import read_catalog_snapshot
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.facts import own_role
from tidemark.postgres.identity import check_same, locate
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session, Timeouts
from tidemark.schema.catalog_snapshot import CatalogSnapshot, WatchedObjects


class Present:
    """Takes catalog snapshots of the source of a lake; connects at the first one, and again after a lost connection."""

    def __init__(self, dsn: Dsn, lake: Lake, reader: LogReader | None) -> None:
        self._dsn, self._lake, self._reader = dsn, lake, reader
        self._names = MirrorNames(lake.mirror)
        self._session: Session | None = None
        self._one_at_a_time = threading.Lock()

    def read_catalog(self) -> CatalogSnapshot:
        """Take a catalog snapshot."""
        with self._one_at_a_time:
            try:
                return read_catalog_snapshot(self._connected(), self._names, WatchedObjects(), lambda _: ())
            except SourceError:
                self._disconnect()
                raise

    def close(self) -> None:
        """Close the connection."""
        with self._one_at_a_time:
            self._disconnect()

    def _connected(self) -> Session:
        if self._session is not None and self._session.connection.closed:
            self._disconnect()
        if self._session is None:
            self._session = open_source(self._dsn, "query", self._lake, self._reader)
        return self._session

    def _disconnect(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


def open_source(
    dsn: Dsn, purpose: str, lake: Lake, reader: LogReader | None, timeouts: Timeouts | None = None
) -> Session:
    """Open a session on the source of a lake, or on a standby of it, which may lag; refuse any other server."""
    session = Session.open(dsn, purpose, timeouts)
    try:
        mirror = read_mirror(lake.log, Disk())
        if mirror is not None and mirror.start is not None:  # otherwise the mirror is polled
            durable = reader.received if reader is not None else Lsn.ZERO
            (in_recovery,) = session.row("select pg_is_in_recovery()")
            found = locate(session, dsn, may_replicate=own_role(session).may_replicate)
            check_same(mirror.identity, replace(found, position=durable) if in_recovery else found, durable)
    except BaseException:
        session.close()
        raise
    return session


@contextmanager
def open_for_statements(opened: OpenLake) -> Iterator[psycopg.Connection[Any]]:
    """Open a session on the source for statements of the user, with the user's own settings, in one snapshot."""
    if opened.source is None:
        raise InvalidValue(
            "a statement in PostgreSQL's dialect requires the source",
            "Use `--source` or the variable TIDEMARK_SOURCE; in Python `tidemark.open(lake, source=…)`.",
        )
    session = open_source(opened.source, "query", opened.lake, opened.reader)
    try:
        connection = session.connection
        for statement in ("RESET ALL", "SET client_encoding = 'UTF8'"):
            connection.execute(statement)
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield connection
    finally:
        session.close()
