"""Who answers for the mirror: the split in the client's session by Python, or `tidemark serve`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import psycopg
from psycopg.pq import TransactionStatus
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, OWNER, Database
from harness.served import served
from tests.split.reference import SETTINGS, PostgresEngine
from tests.sql_parity.lakes import LIMIT_S, Opener, Routes, connected
from tests.sql_parity.routes import Answer, Column, ServerRoute, SessionRoute, error_of
from tidemark.clock import Lsn, Snapshot
from tidemark.errors import InvalidValue, NotAnswerable, TidemarkError
from tidemark.mirror.dialect import MakeEngine, answer, spark_engine
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.moment import Moment

BEGIN = "begin isolation level repeatable read"
HERE = "select pg_catalog.pg_current_snapshot()::text, pg_catalog.pg_current_wal_insert_lsn()::text"
NOTHING = cast("Moment", None)  # what an engine is given that reads no lake
ENGINES: dict[str, MakeEngine] = {"spark": spark_engine}
_SPECIFIC = re.compile(r'"[^"]*"|\b(t\d+|c\d+|x\d+)\b|(?<=rejected the statement: ).*|\d+', re.DOTALL)


def routes_of(name: str, spark: SparkSession | None, engine: str) -> Routes:
    """The routes of a name; `reference`, for which there is no session of Spark, needs no lake."""
    if spark is None:
        return by_reference
    return partial(by_server, engine) if name == "server" else partial(by_split, spark, engine)


class SplitRoute(SessionRoute):
    """A session of the source in which Python splits the statements; what cannot be split is not executed.

    The mirror is read at the session's own snapshot: that of its transaction, or of one for the statement alone.
    """

    def __init__(self, connection: psycopg.Connection[Any], mirror: Mirror | None, engine: MakeEngine) -> None:
        super().__init__(connection)
        self._mirror, self._engine = mirror, engine
        self._snapshot, self._moment = "", ExitStack()
        self._opened: Moment | None = None

    def run(self, statement: str, settings: Sequence[str] = ()) -> Answer:
        """Answer a query by the mirror; run a statement that begins or ends a transaction."""
        if statement.startswith(("begin", "rollback", "lock", "select pg_export")):
            return super().run(statement, settings)
        self.prepare(settings)
        inside = self.connection.info.transaction_status != TransactionStatus.IDLE
        begin, end = ("savepoint split", "rollback to savepoint split") if inside else (BEGIN, "rollback")
        try:
            self.connection.execute(begin)
            return self._answer(statement)
        except psycopg.Error as error:
            return Answer(passed=True, reason=f"the session failed: {error_of(error)}")
        except (NotAnswerable, InvalidValue) as error:
            return Answer(passed=True, reason=f"{type(error).__name__}: {reason_of(error)}")
        except Exception as error:  # noqa: BLE001  such an error is a finding, and the run goes on
            return Answer(error=f"crash: {type(error).__name__}: {error}", by_mirror=True)
        finally:
            self.connection.execute(end)

    def _answer(self, statement: str) -> Answer:
        answered = answer(statement, (), self._at(), self.connection, self._engine)
        columns = tuple(Column(each.name, each.type, each.typmod) for each in answered.columns)
        return Answer(columns, tuple(answered.rows), by_mirror=True)

    def _at(self) -> Moment:
        """The moment of the session's snapshot, kept until there is another one."""
        snapshot, lsn = self.connection.execute(HERE).fetchone() or ("", "")
        if self._mirror is None:
            return NOTHING
        if snapshot != self._snapshot or self._opened is None:
            self._moment.close()
            tables = [each.name for each in self._mirror.tables if each.state == "readable"]
            seen = self._mirror.seen_by(Snapshot.parse(snapshot), Lsn.parse(lsn), tables)
            self._opened = self._moment.enter_context(seen)
            self._snapshot = snapshot
        return self._opened


def reason_of(error: TidemarkError) -> str:
    """The message of an error without the names and values in it, so that it can be counted."""
    return re.sub(r"\s+", " ", _SPECIFIC.sub("…", error.message))[:100]


@contextmanager
def by_split(spark: SparkSession, engine: str, database: Database, lake: Path) -> Iterator[Opener]:
    """Sessions of the source in which Python splits."""
    with ExitStack() as opened:
        mirror = tidemark.open(lake, spark, source=database.dsn(MIRROR))
        opened.callback(mirror.close)

        def connect() -> SplitRoute:
            return SplitRoute(opened.enter_context(connected(database)), mirror, ENGINES[engine])

        yield connect


@contextmanager
def by_server(engine: str, database: Database, lake: Path) -> Iterator[Opener]:
    """Sessions of `tidemark serve`."""
    dsn, options = database.dsn(OWNER), f"-c statement_timeout={LIMIT_S}s"
    with ExitStack() as opened:
        running = opened.enter_context(served(dsn, lake, "--engine", engine, "--route", "auto"))

        def connect() -> ServerRoute:
            session = psycopg.connect(running.dsn(dsn), options=options, autocommit=True)
            return ServerRoute(opened.enter_context(session))

        yield connect


@contextmanager
def by_reference(database: Database, _: Path) -> Iterator[Opener]:
    """Sessions of the source in which Python splits, and other ones in which PostgreSQL computes the bottoms."""
    with ExitStack() as opened:

        def connect() -> SplitRoute:
            below = opened.enter_context(connected(database, SETTINGS))
            engine = lambda _, facts: PostgresEngine(below, facts)  # noqa: E731
            return SplitRoute(opened.enter_context(connected(database)), None, engine)

        yield connect
