"""Two databases, copies from one to the other, and the comparison of their contents by the servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from harness.database import OWNER, Database, create_database
from harness.postgres import Server
from harness.recorder import TABLES, Recorder
from harness.standby import shared
from tidemark.pipeline.copy.progress import CopyProgress
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session
from tidemark.postgres.shared import SharedSnapshot
from tidemark.schema.fingerprint import Fingerprint
from tidemark.target.copying import CopyRecorder, FilledTable, TableFailed, copy_tables

_TABLES = """
    select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema', 'tidemark') order by 1
"""

Results = dict[str, FilledTable | TableFailed]


@dataclass
class Pair:
    """A source, read by a role without privileges, and a target, written by the role that owns the database."""

    source: Database
    target: Database
    recorder: CopyRecorder = field(default_factory=Recorder)
    progress: CopyProgress = field(default_factory=CopyProgress)

    def both(self, *statements: str) -> None:
        """Run statements as the application at the source and at the target."""
        for each in (self.source, self.target):
            each.run(*statements)

    def fill(self, *statements: str) -> None:
        """Create tables at both, by the statements that begin with CREATE or ALTER; run the others at the source."""
        self.source.run(*statements)
        self.target.run(*(each for each in statements if each.startswith(("create", "alter"))))

    def copy(
        self,
        *names: str,
        spark: SparkSession | None = None,
        jobs: int = 2,
        dsn: Dsn | None = None,
        planned: Callable[[], object] = lambda: None,
    ) -> Results:
        """Copy tables in a new snapshot; `planned` is called when the first table is known."""
        with shared(self.source) as (snapshot, session):
            return self.copied(snapshot, tables(session, *names), spark, jobs, dsn, planned)

    def copied(
        self,
        snapshot: SharedSnapshot,
        chosen: list[Fingerprint],
        spark: SparkSession | None = None,
        jobs: int = 2,
        dsn: Dsn | None = None,
        planned: Callable[[], object] = lambda: None,
    ) -> Results:
        planned()
        target = dsn or self.target.dsn(OWNER)
        results = copy_tables(spark, snapshot, target, chosen, jobs, self.recorder, self.progress)
        return {each.fingerprint.name: each for each in results}

    def copy_all(self, *names: str, **options: Any) -> Results:
        """Copy tables, all of which must be copied."""
        results = self.copy(*names, **options)
        failed = [each for each in results.values() if isinstance(each, TableFailed)]
        if failed:
            raise failed[0].error
        return results

    def require_equal(self) -> int:
        """Compare every table; return the number of rows."""
        names = [name for (name,) in self.source.admin(_TABLES)]
        assert names == [name for (name,) in self.target.admin(_TABLES)]
        rows = 0
        for name in names:
            here, there = content(self.source, name), content(self.target, name)
            assert (name, here) == (name, there)
            rows += here[0]
        return rows

    def require_consistent(self) -> None:
        """A table has all rows of the source, or none, or is recorded as unfinished."""
        with self.target.session(OWNER) as session:
            unfinished = Recorder().unfinished(session)
        for oid, name in self.source.admin(f"select s.name::regclass::oid, s.name from ({_TABLES}) s(name)"):
            there = content(self.target, name)
            assert oid in unfinished or there[0] == 0 or there == content(self.source, name), name


def tables(session: Session, *names: str) -> list[Fingerprint]:
    """The tables of these names, or all of them."""
    found = [Fingerprint.of(table, ()) for table in read_catalog(session).tables]
    return [table for table in found if not names or table.name in names]


def content(database: Database, name: str) -> tuple[int, str | None]:
    """The number of rows, and a digest of the text of all rows."""
    encoding = "case getdatabaseencoding() when 'SQL_ASCII' then 'SQL_ASCII' else 'UTF8' end"
    rows_of = f"select md5(convert_to(_row_::text, {encoding})) from only {name} _row_"
    ((rows, digest),) = database.admin(f"select count(*), md5(string_agg(d, '' order by d)) from ({rows_of}) r(d)")
    return rows, digest


@contextmanager
def pair_of(source: Server, target: Server, encodings: tuple[str | None, str | None] = (None, None)) -> Iterator[Pair]:
    """Two new databases. The target has other OIDs."""
    here, there = create_database(source, encodings[0]), create_database(target, encodings[1])
    there.run(*(f"create type other{n} as enum ()" for n in range(5)))
    there.run(TABLES)
    try:
        yield Pair(here, there)
    finally:
        here.drop()
        there.drop()
