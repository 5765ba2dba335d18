"""A database as users have it: an application that owns the tables, and a mirror role that owns nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import psycopg

from harness.postgres import Server
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session, Timeouts

OWNER, MIRROR = "app", "mirror"
PASSWORD = "s3cret-c4nary"  # noqa: S105
PATIENT = Timeouts(idle_in_transaction_s=0)  # for a transaction that stays open while other sessions work


def add_roles(server: Server) -> None:
    """Create the owner, without special privileges, and the mirror role, with LOGIN and REPLICATION only."""
    cheap = ["set scram_iterations = 1"] if server.install.major >= 16 else []  # tests open thousands of connections
    server.sql(
        *cheap,
        f"create role {OWNER} login password '{PASSWORD}'",
        f"create role {MIRROR} login replication password '{PASSWORD}'",
    )


@dataclass(frozen=True)
class Database:
    """A database of a server that has both roles."""

    server: Server
    name: str

    @property
    def names(self) -> MirrorNames:
        """The names of the mirror: each database has its own, because slots belong to the whole server."""
        return MirrorNames(self.name)

    def dsn(self, user: str = MIRROR) -> Dsn:
        """The connection string, by default for the mirror role."""
        return Dsn(self.server.dsn(user, self.name, password=PASSWORD))

    def session(self, user: str = MIRROR, timeouts: Timeouts | None = None) -> Session:
        """A Tidemark session, by default as the mirror role."""
        return Session.open(self.dsn(user), "test", timeouts)

    def connect(self, user: str = OWNER) -> psycopg.Connection[Any]:
        """A plain connection, by default as the application."""
        return self.server.connect(self.name, user, password=PASSWORD)

    def hide_wal(self) -> Callable[[], object]:
        """Hide the WAL segment from which decoding for the mirror's slot starts; return what restores it."""
        self.admin("select pg_switch_wal()", "checkpoint")
        where = f"from pg_replication_slots where slot_name = '{self.names.slot}'"
        ((segment,),) = self.admin(f"select pg_walfile_name(restart_lsn) {where}")
        file = self.server.data / "pg_wal" / segment
        hidden = file.rename(self.server.data / segment)
        return lambda: hidden.rename(file)

    def run(self, *statements: str, user: str = OWNER) -> list[tuple[Any, ...]]:
        """Run statements as the application, one per transaction; return the rows of the last one that has any."""
        rows: list[tuple[Any, ...]] = []
        with self.connect(user) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description is not None else rows
        return rows

    def admin(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements as the superuser; return the rows of the last one that has any."""
        return self.server.sql(*statements, dbname=self.name)

    def drop(self) -> None:
        """Drop the database, and the slots that belong to it."""
        ours = f"from pg_replication_slots where database = '{self.name}'"
        ended = f"select pg_terminate_backend(active_pid, 10000) {ours} and active_pid is not null"
        self.server.sql(ended, f"select pg_drop_replication_slot(slot_name) {ours}")
        self.server.sql(f"drop database {self.name} with (force)")


def create_database(server: Server, encoding: str | None = None, *, locale: str = "") -> Database:
    """Create a database: the application may create tables in it, and the mirror role may read them.

    `locale` are options of CREATE DATABASE, such as `locale_provider icu icu_locale 'de' locale 'C'`.
    """
    database = Database(server, f"db_{uuid4().hex[:12]}")
    how = f"template template0 locale 'C' encoding '{encoding}'" if encoding else ""
    how = f"template template0 {locale}" if locale else how
    server.sql(f"create database {database.name} owner {OWNER} {how}")
    database.admin(
        f"grant create on schema public to {OWNER}",
        f"alter default privileges for role {OWNER} grant select on tables to {MIRROR}",
        f"alter default privileges for role {OWNER} grant usage on schemas to {MIRROR}",
    )
    return database
