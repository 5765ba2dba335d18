"""A standby's snapshot as tasks read by it: what its one session has read for them, and what goes wrong meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from psycopg import sql

from harness.database import Database, create_database
from harness.standby import running, shared, standby_of, wait_for
from tests.conftest import NEWEST, Start
from tidemark.errors import LakeDiskFull, TidemarkError, UnexpectedSourceError
from tidemark.pipeline.copy import sources
from tidemark.pipeline.copy.parts import parts_of
from tidemark.pipeline.copy.reading import PartQuery
from tidemark.pipeline.copy.sources import Imported, PartSources, Spooled, read_part
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.session import Session
from tidemark.schema.fingerprint import Fingerprint
from tidemark.spark import TasksStopped
from tidemark.values.types import Types, decoding_of

pytestmark = [pytest.mark.quick, NEWEST]

ROWS, INTEGER = 50_000, 23
LATE = f"delete from t where id <= 100; insert into t values ({ROWS} + 1)"


@pytest.fixture
def pair(start: Start) -> Iterator[tuple[Database, Database]]:
    """A database, and how a standby has it."""
    db = create_database(start(autovacuum=False))
    db.run("create table t (id int primary key)", f"insert into t select generate_series(1, {ROWS})")
    with standby_of(db) as there:
        yield db, there


def asked(session: Session, shown: str = "id") -> list[PartQuery]:
    """All rows of the table, in parts."""
    (table,) = [each for each in read_catalog(session).tables if each.name == "t"]
    parts = parts_of(table.oid, 200, 1 << 20, 10)
    assert len(parts) > 3
    return [PartQuery(Fingerprint.of(table, ()), part, ("id",), (sql.SQL(shown),)) for part in parts]


def read(sources: PartSources, queries: list[PartQuery]) -> list[int]:
    decodings = [decoding_of(INTEGER, -1, Types({}, 180000))]
    with sources.provided(queries) as source:
        batches = [batch for query in queries for batch in read_part(source, query, decodings)]
        assert isinstance(source, Imported if sources.snapshot.name else Spooled)
    return sorted(value for batch in batches for value in batch.columns[0].array.to_pylist())


def test_tasks_read_what_the_snapshot_shows(pair: tuple[Database, Database], tmp_path: Path) -> None:
    db, there = pair
    with running(db, there, LATE) as writer, shared(there) as (snapshot, session):
        queries = asked(session)
        writer.execute(b"commit")
        wait_for(there, db)
        assert read(PartSources(snapshot, tmp_path / "spool"), queries) == list(range(1, ROWS + 1))
    assert not list((tmp_path / "spool").iterdir())
    with shared(there) as (snapshot, session):
        assert read(PartSources(snapshot, tmp_path / "other"), asked(session)) == list(range(101, ROWS + 2))
    assert not (tmp_path / "other").exists()


def test_an_error_in_the_middle_of_a_copy_leaves_the_snapshot(pair: tuple[Database, Database], tmp_path: Path) -> None:
    db, there = pair
    with running(db, there, LATE), shared(there) as (snapshot, session):
        sources = PartSources(snapshot, tmp_path / "spool")
        with pytest.raises(UnexpectedSourceError, match="division by zero"):
            read(sources, asked(session, f"1 / (id - {ROWS})"))
        with pytest.raises(TasksStopped):
            read(PartSources(snapshot, tmp_path / "spool", lambda: True), asked(session))
        assert not list((tmp_path / "spool").iterdir())
        assert read(sources, asked(session)) == list(range(1, ROWS + 1))


def test_a_full_disk_and_one_that_is_not_there_are_named(
    pair: tuple[Database, Database], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, there = pair
    fixed: UUID = uuid4()
    (tmp_path / f"{fixed.hex}.copy").symlink_to("/dev/full")
    with running(db, there, LATE):
        with shared(there) as (snapshot, session), monkeypatch.context() as patch:
            queries = asked(session)
            patch.setattr(sources, "uuid4", lambda: fixed)
            for _ in range(2):
                with pytest.raises(LakeDiskFull, match="No space left on device on the file system mounted at /"):
                    read(PartSources(snapshot, tmp_path), queries)
        with shared(there) as (snapshot, session):
            (tmp_path / "file").touch()
            with pytest.raises(TidemarkError, match="file"):
                read(PartSources(snapshot, tmp_path / "file"), asked(session))
            assert len(read(PartSources(snapshot, tmp_path), asked(session))) == ROWS
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file"]
