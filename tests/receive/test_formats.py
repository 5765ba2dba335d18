"""A binary stream becomes text when it must, before a value is in the log that could not be decoded."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.database import Database
from harness.mirrored import Mirrored, connected, eventually, mirrored, receiving, said
from harness.printed import printed
from harness.recorded import types_of
from tidemark.clock import Lsn
from tidemark.log.reader import LogReader
from tidemark.pgoutput.changes import ChangeBatch
from tidemark.values.types import Types

pytestmark = pytest.mark.quick


def decoded(mirror: Mirrored) -> list[tuple[str | None, ...]]:
    """Every row that was inserted, as PostgreSQL prints it."""
    reader = LogReader(mirror.options.folder)
    types = Types(types_of(mirror.database))
    rows: list[tuple[str | None, ...]] = []
    for batch in reader.read(Lsn.ZERO, reader.received, types):
        if isinstance(batch, ChangeBatch):
            rows += zip(*(printed(column) for column in batch.new), strict=True)
    return rows


def test_columns_of_new_types_in_a_running_stream(db: Database, tmp_path: Path) -> None:
    db.run("create table t (id int primary key)")
    mirror = mirrored(db, tmp_path, "t")
    with receiving(mirror) as process:
        with connected(mirror.options.folder) as client:
            eventually(lambda: client.position().state == "streaming")
        db.run("insert into t values (1)")
        mirror.catch_up()
        with db.connect() as connection:
            connection.execute("create type mood as enum ('glad', 'sad')")
            connection.execute("begin; alter table t add m mood; insert into t values (2, 'sad'); commit")
        mirror.catch_up()
        db.run("alter table t add a inet", "insert into t values (3, 'glad', '10.0.0.1')")
        mirror.catch_up()
        process.stop()
        process.wait()
    assert decoded(mirror) == [("1",), ("2", "sad"), ("3", "glad", "10.0.0.1")]
    formats = [line.rpartition(" ")[2] for line in said(mirror).splitlines() if "streaming from" in line]
    assert formats == ["binary", "binary", "text"]


def test_a_type_that_is_gone_when_its_rows_arrive(db: Database, tmp_path: Path) -> None:
    """The catalogue cannot tell any more what the rows of that time were: they come as text."""
    db.run("create type mood as enum ('glad', 'sad')", "create table t (id int primary key)")
    mirror = mirrored(db, tmp_path, "t")
    db.run("alter table t add m mood", "insert into t values (1, 'sad')", "alter table t drop m", "drop type mood")
    with receiving(mirror) as process:
        mirror.catch_up()
        process.stop()
        process.wait()
    assert decoded(mirror) == [("1", "sad")]
