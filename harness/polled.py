"""A mirror in poll mode for tests: the contents of tables in the snapshot of every poll, compared with the mirror."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psycopg import sql
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, Database
from harness.lake import ONLY, read_table, require_read
from harness.logs import logged
from harness.proxy import Proxy
from tidemark.clock import Lsn
from tidemark.lake.requests import request_resync
from tidemark.pipeline.fold.compactor import Compactor
from tidemark.pipeline.poll.lake_poller import lake_poller
from tidemark.pipeline.poll.options import PollOptions
from tidemark.pipeline.poll.poller import Polled, Poller
from tidemark.pipeline.poll.snapshot_session import PollSnapshot
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session
from tidemark.reads.names import parsed
from tidemark.schema.selection import Selection


@dataclass
class PolledMirror:
    """A lake in poll mode, and the recorded contents of its source."""

    database: Database
    options: PollOptions
    spark: SparkSession
    poller: Poller
    said: list[str]
    notes: dict[Lsn, dict[str, Any]] = field(default_factory=dict)

    def poll(self, *tables: str) -> Polled | None:
        """Poll, and record the contents of these tables in the poll's snapshot."""

        def note(seen: PollSnapshot, lsn: Lsn) -> None:
            with seen.shared.session("note") as session:
                self.notes[lsn] = {table: read_table(session, table) for table in tables if _is_as_seen(session, table)}

        return self.poller.step(note)

    def resync(self, *tables: str) -> None:
        """Request that the next poll copies tables."""
        names = {each.fingerprint.name: oid for oid, each in self.poller.tables.histories.items()}
        request_resync(self.options.lake, [names[table] for table in tables])

    def fold(self) -> int:
        """Fold every table that has changes to fold; return their number."""
        with Compactor(self.options.lake, self.spark) as compactor:
            return len([compactor.fold(table) for table in compactor.foldable()])

    def require_news(self, *tables: str) -> Polled:
        """Poll and compare, and require that something became visible since the last poll."""
        polled = self.require_equal(*tables)
        assert polled is not None
        return polled

    def require_idle(self, *tables: str) -> None:
        """Poll and compare, and require that nothing became visible since the last poll.

        Several polls may be necessary, because the server sometimes starts a transaction of its own.
        """
        for _ in range(10):
            polled = self.require_equal(*tables)
            if polled is None:
                return
            assert polled.changes == 0
        raise AssertionError("every poll found another snapshot")

    def require_noted(self) -> int:
        """Require that the mirror returns the recorded rows at each LSN; return the number of comparisons."""
        mirror = tidemark.open(self.options.lake, self.spark)
        for lsn, tables in self.notes.items():
            with mirror.at(lsn) as moment:
                for table, (columns, rows) in tables.items():
                    require_read(moment, table, columns, rows)
        return sum(len(tables) for tables in self.notes.values())

    def require_equal(self, *tables: str) -> Polled | None:
        """Poll, and require that the mirror returns the rows of the poll's snapshot."""
        self.notes = {}
        polled = self.poll(*tables)
        self.require_noted()
        return polled


def _is_as_seen(session: Session, table: str) -> bool:
    """Lock a table, and return whether it is still as in the snapshot.

    For a table that was truncated since, PostgreSQL would return no rows.
    """
    named = sql.Identifier(*parsed(table.removeprefix(ONLY)))
    session.execute(sql.SQL("lock table only {} in access share mode").format(named), "locking")
    quoted = named.as_string(session.connection)
    (then, now) = session.row(
        "select relfilenode, pg_relation_filenode(oid) from pg_class where oid = to_regclass(%s)", [quoted]
    )
    columns = session.rows(
        "select attname from pg_attribute where attrelid = to_regclass(%s) and attnum > 0 and not attisdropped"
        " order by attnum",
        [quoted],
    )
    found = session.connection.execute(sql.SQL("select * from only {} limit 0").format(named)).description or []
    return bool(then == now or now is None) and [name for (name,) in columns] == [column.name for column in found]


@contextmanager
def polling(
    database: Database,
    folder: Path,
    spark: SparkSession,
    selection: Selection | None = None,
    proxy: Proxy | None = None,
    **options: Any,
) -> Iterator[PolledMirror]:
    """A mirror that polls a database on request, through a proxy if there is one, until the context ends."""
    source = database.dsn(MIRROR)
    if proxy is not None:
        source = Dsn(source.reveal().replace(f"port={database.server.port}", f"port={proxy.port}"))
    chosen = PollOptions(source, folder / "lake", database.names, selection or Selection(), **options)
    with logged("tidemark.pipeline") as said, lake_poller(chosen, spark) as poller:
        yield PolledMirror(database, chosen, spark, poller, said)
