"""Databases with lakes for the comparison of statements: where they are, and their sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from pyspark.sql import SparkSession

from harness.database import OWNER, PASSWORD, Database, add_roles, create_database
from harness.postgres import Install, Server, start_server
from harness.syncing import syncing
from tests.sql_parity.routes import Route, SessionRoute

ICU = "locale_provider icu icu_locale 'en-US' locale 'C'"
LIBC = "locale 'C.utf8'"
LIMIT_S = 120

Opener = Callable[[], Route]
Routes = Callable[[Database, Path], AbstractContextManager[Opener]]  # of a lake: sessions in which the mirror answers


@dataclass(frozen=True, slots=True)
class Place:
    """An installation, and how a database in it orders texts."""

    install: Install
    locale: str = ""

    def __str__(self) -> str:
        return f"PostgreSQL {self.install.major}, {self.locale or 'collation C'}"


@contextmanager
def server_at(install: Install) -> Iterator[Server]:
    """A server of its own."""
    server = start_server(install)
    try:
        add_roles(server)
        yield server
    finally:
        server.remove()


@contextmanager
def database_at(place: Place) -> Iterator[Database]:
    """A database on a server of its own."""
    with server_at(place.install) as server:
        yield create_database(server, locale=place.locale)


def has_icu(server: Server) -> bool:
    """Whether the server was built with ICU."""
    return bool(server.sql("select 1 from pg_collation where collname like '%-x-icu' limit 1"))


@contextmanager
def copied(database: Database, folder: Path, spark: SparkSession | None, tables: Sequence[str]) -> Iterator[Path]:
    """A lake to which tables are copied; none without Spark."""
    if spark is None:
        yield folder
        return
    with syncing(database, folder, spark, *tables, folds=False) as synced:
        synced.catch_up()
        synced.copy_all()
        synced.catch_up()
        yield synced.options.lake


def connected(database: Database, settings: str = "") -> psycopg.Connection[Any]:
    """A session as the application, whose statements end some time."""
    options = f"-c statement_timeout={LIMIT_S}s {settings}"
    connection = database.server.connect(database.name, OWNER, password=PASSWORD, options=options)
    connection.autocommit = True
    return connection


@contextmanager
def source_session(database: Database) -> Iterator[SessionRoute]:
    """A session at the source."""
    with connected(database) as connection:
        yield SessionRoute(connection)
