"""Where pollers lose rows, and ours does not: each is shown beside one who goes by the rule that loses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.polled import PolledMirror, polling
from tests.conftest import NEWEST

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]


@dataclass
class Naive:
    """A poller as they are written: `id` and `v` of table t, by what it remembers of the last time."""

    database: Database
    rows: dict[int, str] = field(default_factory=dict)
    mark: int = 0
    snapshot: str = ""

    def by_greatest(self) -> None:
        """Rows above the greatest xmin that was seen."""
        self._take(f"xmin::text::bigint > {self.mark}")

    def by_portions(self, most: int) -> None:
        """The same, some rows at a time, the oldest first."""
        while self._take(f"xmin::text::bigint > {self.mark} order by xmin::text::bigint, id limit {most}") == most:
            pass

    def by_visibility(self) -> None:
        """Rows whose xmin the last snapshot did not see."""
        before, (here,) = self.snapshot, self.database.run("select pg_current_snapshot()::text")[0]
        unseen = f"not pg_visible_in_snapshot(xmin::text::xid8, '{before}')" if before else "true"
        self._take(unseen)
        self.snapshot = here

    def forget(self, keys: set[int]) -> None:
        """Rows whose keys are not among those of the source are gone from it."""
        self.rows = {key: value for key, value in self.rows.items() if key in keys}

    def keys(self) -> set[int]:
        """The source's, now."""
        return {key for (key,) in self.database.run("select id from t")}

    def require_lost(self, lost: int) -> None:
        """So many rows of the source it does not have, or has otherwise."""
        there = dict(self.database.run("select id, v from t"))
        assert len(there.items() - self.rows.items()) == lost

    def _take(self, condition: str) -> int:
        found = self.database.run(f"select id, v, xmin::text::bigint from t where {condition}")
        self.rows |= {key: value for key, value, _ in found}
        self.mark = max([self.mark, *(xmin for *_, xmin in found)])
        return len(found)


@contextmanager
def beside(db: Database, tmp_path: Path, spark: SparkSession) -> Iterator[tuple[Naive, PolledMirror]]:
    """A table, a naive poller and ours."""
    db.run("create table t (id int primary key, v text)", "insert into t values (0, 'first')")
    with polling(db, tmp_path, spark) as mirror:
        mirror.require_equal("t")
        yield Naive(db), mirror


@contextmanager
def opened(db: Database, statement: str) -> Iterator[Any]:
    """A transaction in which a statement was run, and which is still open."""
    with db.connect() as session:
        session.execute("begin")
        session.execute(statement.encode())
        yield session


@pytest.mark.full
def test_a_lower_id_that_commits_later(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    with beside(db, tmp_path, spark) as (naive, mirror), opened(db, "insert into t values (1, 'early')") as early:
        db.run("begin; insert into t values (2, 'prepared'); prepare transaction 'lower'")
        db.run("insert into t values (3, 'late')")
        naive.by_greatest()
        mirror.require_equal("t")
        early.execute("commit")
        naive.by_greatest()
        naive.require_lost(1)
        assert mirror.require_news("t").changes == 1
        db.run("commit prepared 'lower'")
        naive.by_greatest()
        naive.require_lost(2)
        assert mirror.require_news("t").changes == 1


@pytest.mark.full
def test_a_transaction_larger_than_a_portion(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    with beside(db, tmp_path, spark) as (naive, mirror):
        db.run("insert into t select i, 'one transaction' from generate_series(1, 2500) i")
        naive.by_portions(1000)
        naive.require_lost(1501)
        assert mirror.require_news("t").changes == 2500


@pytest.mark.full
def test_ids_of_subtransactions(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    with beside(db, tmp_path, spark) as (naive, mirror), opened(db, "insert into t values (1, 'top')") as nested:
        for n in range(2, 102):
            nested.execute(f"savepoint s{n}; insert into t values ({n}, 'nested'); release s{n}".encode())
        nested.execute(
            b"savepoint undone; update t set v = 'undone'; rollback to undone; insert into t values (500, 'e')"
        )
        db.run("insert into t values (1000, 'higher')")
        naive.by_visibility()
        mirror.require_equal("t")
        nested.execute("commit")
        naive.by_visibility()
        naive.require_lost(101)
        assert mirror.require_news("t").changes == 102


@pytest.mark.full
def test_keys_read_at_another_time_than_rows(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    with beside(db, tmp_path, spark) as (naive, mirror):
        naive.by_greatest()
        keys = naive.keys()
        db.run("insert into t values (1, 'in between')", "delete from t where id = 0")
        naive.by_greatest()
        naive.forget(keys)
        naive.by_greatest()
        naive.forget(naive.keys())
        naive.require_lost(1)
        mirror.require_equal("t")


@pytest.mark.full
def test_rows_frozen_before_they_were_seen(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    with beside(db, tmp_path, spark) as (_, mirror):
        db.run("insert into t select i, 'v' from generate_series(1, 50) i")
        mirror.require_equal("t")
        db.run("update t set v = 'w' where id % 10 = 0", "delete from t where id % 10 = 1")
        with db.connect() as session:  # one that is frozen by the transaction that writes it
            session.execute("begin; create table cold (id int primary key)")
            with session.cursor().copy("copy cold from stdin (freeze)") as copy:
                copy.write("1\n2\n")
            session.execute("commit")
        db.admin("vacuum (freeze) t", "vacuum (freeze) cold")
        assert mirror.require_news("t", "cold").changes == 6 + 5
        db.admin("vacuum (full, freeze) t")
        polled = mirror.require_equal("t", "cold")
        assert polled is None or (polled.changes, polled.copied) == (0, 0)


@pytest.mark.full
def test_a_prepared_transaction_across_many_polls(db: Database, tmp_path: Path, spark: SparkSession) -> None:
    with beside(db, tmp_path, spark) as (_, mirror):
        for ended, changes in (("rollback", 0), ("commit", 2)):
            changed = "update t set v = 'changed' where id = 0; insert into t values (1, 'new')"
            db.run(f"begin; {changed}; prepare transaction 'long'")
            for _ in range(2):
                db.run("insert into t select max(id) + 10, 'other' from t")
                assert mirror.require_news("t").changes == 1
            db.admin("vacuum freeze t")
            mirror.require_equal("t")
            db.run(f"{ended} prepared 'long'")
            assert mirror.require_news("t").changes == changes
