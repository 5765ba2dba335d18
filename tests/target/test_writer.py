"""Changes that are netted, staged and merged leave the target equal to the source, however they are divided."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from harness.database import OWNER, Database, create_database
from harness.mirrored import mirrored, receive_all
from harness.postgres import Server
from tests.conftest import NEWEST, quick_only
from tests.target.load import TABLES, contents, create_tables, database_with_tables, hostile
from tidemark.clock import Boundary, Lsn
from tidemark.errors import RowRejected, TargetDiffers
from tidemark.log.mapped import located
from tidemark.log.reader import LogReader
from tidemark.log.slices import plan
from tidemark.pgoutput import events, frames, scan
from tidemark.pgoutput.assembly import Assembler
from tidemark.postgres import libpq
from tidemark.postgres.catalog import read_catalog
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.relation import Relation
from tidemark.target import net, rows
from tidemark.target.merging import MergedCounts
from tidemark.target.tables import TargetTable, read_tables
from tidemark.target.writer import FollowedTable, TargetWriter, compile_kernels

pytestmark = [pytest.mark.quick, NEWEST]


@pytest.fixture
def source(server: Server, ranges: bool) -> Iterator[Database]:
    yield from database_with_tables(server, ranges=ranges)


@pytest.fixture
def target(server: Server, ranges: bool) -> Iterator[Database]:
    yield from database_with_tables(server, ranges=ranges)


class CloneFollower:
    """A log of the source that is applied to targets."""

    def __init__(self, source: Database, folder: Path, **options: Any) -> None:
        self.source = source
        self.mirror = mirrored(source, folder, *TABLES, **options)
        self.log = self.mirror.options.folder

    def received(self, *, binary: bool = True) -> Lsn:
        return receive_all(self.mirror, replace(self.mirror.options, binary=binary))

    @contextmanager
    def writer(self, target: Database) -> Iterator[Callable[..., list[MergedCounts]]]:
        with self.source.session() as session:
            catalog = read_catalog(session)
        with target.session(OWNER) as session:
            found = read_tables(session, [("public", name) for name in TABLES])
            tables = {}
            for table in catalog.tables:
                if table.name in TABLES:
                    definition, there = Fingerprint.of(table, []), found["public", table.name]
                    names = [c.name for c in definition.columns]
                    key = tuple(names.index(c.name) for c in definition.columns if c.attnum in definition.key)
                    others = there.exclusive_beside(names[at] for at in key)
                    tables[table.oid] = (definition, there, key, others)

            def followed(relation: Relation) -> FollowedTable | None:
                _, there, key, others = tables[relation.oid]
                names = [column.name for column in relation.columns]
                columns = tuple(there.columns[name] for name in names)
                exclusive = frozenset(at for at, name in enumerate(names) if name in others)
                return FollowedTable(TargetTable("public", relation.name, columns, key, exclusive), Boundary(Lsn.ZERO))

            writer = TargetWriter(session, followed)

            def write(after: Lsn, upto: Lsn, batch_bytes: int, slice_bytes: int = 1 << 20) -> list[MergedCounts]:
                merged, reader = [], LogReader(self.log)
                while after < upto:
                    planned = plan(reader, after, upto, batch_bytes, slice_bytes)
                    merged.append(writer.write(planned, self.log, lambda _: None))
                    after = planned.upto
                return merged

            yield write


@pytest.mark.parametrize("ranges", [True, False], ids=["text", "binary"])
@pytest.mark.parametrize("batch_bytes", quick_only([1, 20_000, 1 << 30], 20_000))
def test_changes_leave_the_target_equal(
    source: Database, target: Database, tmp_path: Path, batch_bytes: int, short: bool, *, ranges: bool
) -> None:
    """Without ranges, all values are sent in binary, and with them as text."""
    following = CloneFollower(source, tmp_path)
    with source.connect() as connection:
        connection.autocommit = True
        hostile(connection, Random(batch_bytes), 150 if short else 1500)  # noqa: S311 - to be repeated
    upto = following.received()
    with following.writer(target) as write:
        merged = write(Lsn.ZERO, upto, batch_bytes)
    assert contents(target) == contents(source)
    assert sum(each.changes for each in merged) > 100
    planned = plan(LogReader(following.log), Lsn.ZERO, upto, 1 << 30, 1 << 30)
    parts = (part for each in planned.slices for part in each.parts)
    formats = [each.rows.new_formats for part in parts for each in located(part, following.log)]
    assert np.bitwise_or.reduce(np.concatenate(formats)) == (scan.Format.TEXT if ranges else scan.Format.BINARY)


def test_what_is_compiled_ahead_is_what_a_batch_uses(source: Database, target: Database, tmp_path: Path) -> None:
    Assembler.compile()
    compile_kernels()
    following = CloneFollower(source, tmp_path)
    source.run(
        "insert into keyed select g, 'v' from generate_series(1, 9) g",
        "update keyed set id = id + 100, v = 'w' where id > 5",
        "delete from keyed where id = 1",
        "insert into plain values (1, 'b', 2)",
        "update plain set a = 2",
    )
    upto = following.received()
    with following.writer(target) as write:
        write(Lsn.ZERO, upto, 1 << 30)
    assert contents(target) == contents(source)
    kernels = [
        (events, "classify"), (frames, "_walk"), (scan, "_classify"), (scan, "_walk"), (net, "_net_rows"),
        (net, "_net_contents"), (rows, "_encode"),
    ]  # fmt: skip
    assert {name: len(getattr(module, name).signatures) for module, name in kernels} == dict.fromkeys(
        (name for _, name in kernels), 1
    )


@pytest.mark.full
def test_values_in_text_and_in_binary_go_together(source: Database, target: Database, tmp_path: Path) -> None:
    following, chance = CloneFollower(source, tmp_path), Random(1)  # noqa: S311 - to be repeated
    upto = Lsn.ZERO
    for binary in (False, True, False):
        with source.connect() as connection:
            connection.autocommit = True
            hostile(connection, chance, 60)
        upto = following.received(binary=binary)
    with following.writer(target) as write:
        write(Lsn.ZERO, upto, 1 << 30)
    assert contents(target) == contents(source)


EXCHANGES = {
    "keys": ("keyed", "update keyed set id = case id when 1 then 3 when 2 then 1 else 2 end where id <= 3"),
    "unique values": ("uniques", "update uniques set u = case u when 1 then 3 when 2 then 1 else 2 end where u <= 3"),
    "excluded ranges": (
        "uniques",
        "update uniques set e = int4range(((u % 3) * 10 + 100)::int, ((u % 3) * 10 + 101)::int) where u <= 3",
    ),
    "large values": ("large", "update large set id = case id when 1 then 3 when 2 then 1 else 2 end where id <= 3"),
}


@pytest.mark.parametrize("exchanged", quick_only(EXCHANGES, "unique values"))
@pytest.mark.parametrize("binary", quick_only([True, False], True))
def test_rows_can_exchange(source: Database, target: Database, tmp_path: Path, exchanged: str, *, binary: bool) -> None:
    following = CloneFollower(source, tmp_path)
    table, statement = EXCHANGES[exchanged]
    source.run(
        "insert into keyed select i, 'v' || i, i from generate_series(1, 5) i",
        "insert into uniques (u, e, v) select i, int4range(i * 10, i * 10 + 1), i from generate_series(1, 5) i",
        "insert into large select i, repeat(md5(i::text), 200), i from generate_series(1, 5) i",
    )
    begun = following.received(binary=binary)
    steps = _one_by_one(table, statement) if exchanged != "excluded ranges" else [statement]
    with source.connect() as connection:
        for step in steps:
            connection.execute(step.encode())
    upto = following.received(binary=binary)
    with following.writer(target) as write:
        write(Lsn.ZERO, begun, 1 << 30)
        write(begun, upto, 1 << 30)
    assert contents(target) == contents(source)


def _one_by_one(table: str, statement: str) -> list[str]:
    """An exchange of unique values by a value that none has."""
    column = "u" if table == "uniques" else "id"
    aside = [f"update {table} set {column} = -{column} where {column} <= 3"]
    return [
        *aside,
        statement.replace(f"case {column} when", f"case -{column} when").replace(f"{column} <= 3", f"{column} < 0"),
    ]


@pytest.mark.full
@pytest.mark.parametrize(
    ("segment_bytes", "slice_bytes"), [(128 << 20, 1000), (1 << 16, 1 << 30)], ids=["slices", "segments"]
)
def test_a_large_transaction_may_exchange_values_that_are_unique_at_its_end_only(
    source: Database, target: Database, tmp_path: Path, segment_bytes: int, slice_bytes: int
) -> None:
    for database in (source, target):
        database.run("alter table uniques drop constraint uniques_u_key, add unique (u) deferrable")
    following = CloneFollower(source, tmp_path, segment_bytes=segment_bytes)
    source.run("insert into uniques (u, v) select i, repeat(i::text, 30) from generate_series(1, 20000) i")
    begun = following.received()
    source.run("update uniques set u = 20001 - u")
    upto = following.received()
    planned = plan(LogReader(following.log), begun, upto, 1 << 30, slice_bytes)
    places = {place for each in planned.slices for part in each.parts for place in part.extents["place"].tolist()}
    assert (len(places) > 1, len(planned.slices) > 1) == (segment_bytes == 1 << 16, slice_bytes == 1000)
    with following.writer(target) as write:
        write(Lsn.ZERO, begun, 1 << 30, slice_bytes)
        write(begun, upto, 1 << 30, slice_bytes)
    assert contents(target) == contents(source)


def test_an_index_on_the_whole_row_concerns_all_columns(target: Database) -> None:
    target.run(
        "create function summed(keyed) returns int immutable language sql return $1.id",
        "create unique index on keyed (summed(keyed))",
    )
    with target.session(OWNER) as session:
        found = read_tables(session, [("public", "keyed"), ("public", "plain")])
    assert found["public", "keyed"].exclusive_beside(["id"]) == {"id", "v", "n"}
    assert found["public", "plain"].exclusive_beside([]) == frozenset()


DROPPED = {
    "trigger": (
        "create function dropped() returns trigger language plpgsql as 'begin return null; end'",
        "create trigger dropped before insert on keyed for each row when (new.id > 5) execute function dropped()",
    ),
    "rule": ("create rule dropped as on insert to keyed where new.id > 5 do instead nothing",),
}


@pytest.mark.parametrize(("how", "binary"), [("trigger", True), ("trigger", False), ("rule", False)])
def test_new_rows_that_the_target_drops_stop_it(
    source: Database, target: Database, tmp_path: Path, how: str, *, binary: bool
) -> None:
    """New rows are read by COPY if their values are sent in binary, and inserted from a stage otherwise."""
    following = CloneFollower(source, tmp_path)
    target.run(*DROPPED[how])
    source.run("insert into keyed select i, 'v' from generate_series(1, 10) i")
    upto = following.received(binary=binary)
    with following.writer(target) as write, pytest.raises(RowRejected, match="has stored 5 of 10 new rows"):
        write(Lsn.ZERO, upto, 1 << 20)
    assert target.run("select count(*) from keyed") == [(0,)]


@pytest.mark.parametrize("binary", quick_only([True, False], False))
def test_values_that_a_cast_from_text_would_change_are_kept(
    source: Database, target: Database, tmp_path: Path, *, binary: bool
) -> None:
    """A cast to text cuts spaces off `bpchar`, and one to `regclass` knows neither `-` nor a table that is gone."""
    for database in (source, target):
        database.run(
            "alter table large alter big type bpchar, add r regclass, add p regclass[]",
            "alter table large alter big set storage external",
        )
    following = CloneFollower(source, tmp_path)
    source.run(
        "insert into large values (1, repeat('x', 3000) || '   ', 1, '-', '{-,99999}'), (2, 'a  ', 2, '99999', null)"
    )
    begun = following.received(binary=binary)
    source.run("update large set id = id + 10")
    upto = following.received(binary=binary)
    with following.writer(target) as write:
        write(Lsn.ZERO, begun, 1 << 20)
        write(begun, upto, 1 << 20)
    assert contents(target) == contents(source)
    assert target.run("select octet_length(big) from large order by id") == [(3003,), (3,)]


def test_nulls_in_arrays_are_kept_if_the_target_does_not_read_them(
    source: Database, target: Database, tmp_path: Path
) -> None:
    """With `array_nulls = off`, the text {NULL} is an array of the string NULL."""
    for database in (source, target):
        database.run("alter table keyed alter v type text[] using array[v]")
    target.admin(f"alter database {target.name} set array_nulls = off")
    following = CloneFollower(source, tmp_path)
    source.run("""insert into keyed values (1, '{NULL,"NULL",a}')""")
    upto = following.received(binary=False)
    with following.writer(target) as write:
        write(Lsn.ZERO, upto, 1 << 20)
    assert target.run("select v[1] is null, v[2] from keyed") == [(True, "NULL")]


def test_a_large_value_that_is_not_sent_again_is_that_of_an_earlier_change_of_the_batch(
    source: Database, target: Database, tmp_path: Path
) -> None:
    following = CloneFollower(source, tmp_path)
    big = "repeat(md5('{}'), 200)"
    source.run(f"insert into large values (1, {big.format(0)}, 0), (2, {big.format(0)}, 0)")
    begun = following.received()
    source.run(
        f"insert into large values (3, {big.format(3)}, 0)",
        "update large set small = 1 where id = 3",
        f"update large set big = {big.format(1)} where id = 1",
        "update large set small = 2",
        "update large set id = id + 10",
    )
    upto = following.received()
    with following.writer(target) as write:
        write(Lsn.ZERO, begun, 1 << 30)
        write(begun, upto, 1 << 30)
    assert contents(target) == contents(source)


LOOSENED = {
    "NOT NULL": ("alter table keyed alter v set not null", "insert into keyed values (1, null)"),
    "check": ('alter table keyed add constraint "Some." check (n > 0)', "insert into keyed values (1, 'a', 0)"),
    "domain": (
        "create domain bounded as numeric constraint few check (value > 0); alter table keyed alter n type bounded",
        "insert into keyed values (1, 'a', 0)",
    ),
    "NOT NULL of a domain": (
        "create domain bounded as text not null; alter table keyed alter v type bounded",
        "insert into keyed values (1, null)",
    ),
}


@pytest.mark.parametrize("constraint", LOOSENED)
@pytest.mark.parametrize("binary", quick_only([True, False], True))
def test_a_constraint_that_the_source_has_dropped_is_named_with_what_drops_it(
    source: Database, target: Database, tmp_path: Path, constraint: str, *, binary: bool
) -> None:
    created, inserted = LOOSENED[constraint]
    target.run(created)
    following = CloneFollower(source, tmp_path)
    source.run(inserted)
    upto = following.received(binary=binary)
    with following.writer(target) as write, pytest.raises(RowRejected) as raised:
        write(Lsn.ZERO, upto, 1 << 20)
    (fix,) = re.findall("`(.*)`", raised.value.hint)
    target.run(fix)
    with following.writer(target) as write:
        write(Lsn.ZERO, upto, 1 << 20)
    assert contents(target) == contents(source)


def test_text_without_an_encoding_is_written_as_it_is_stored(server: Server, tmp_path: Path) -> None:
    source, target = (create_database(server, "SQL_ASCII") for _ in range(2))
    for database in (source, target):
        create_tables(database)
    following = CloneFollower(source, tmp_path, as_stored_s=0.1)
    source.run(
        "insert into keyed values (1, E'\\xe9\\xff')",
        "insert into plain values (1, E'\\xfe', 1)",
        "insert into large select 1, repeat(E'\\xfd', 9000), 1",
    )
    begun = following.received()
    source.run("update keyed set id = 2", "update plain set f = 2", "update large set id = 2")
    upto = following.received()
    with following.writer(target) as write:
        write(Lsn.ZERO, begun, 1 << 20)
        write(begun, upto, 1 << 20)
    for name in ("keyed", "plain", "large"):
        stored = f"select md5(t::text), octet_length(t::text) from {name} t"
        assert target.run(stored) == source.run(stored) != []
    source.drop()
    target.drop()


def test_rows_are_sent_in_pieces(
    source: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PQputCopyData takes the size of a piece as a C int, which rows of a batch can exceed."""
    monkeypatch.setattr(libpq, "PIECE_BYTES", 1000)
    following = CloneFollower(source, tmp_path)
    source.run("insert into keyed select i, repeat('v', 100) from generate_series(1, 100) i", "update keyed set n = id")
    upto = following.received()
    with following.writer(target) as write:
        write(Lsn.ZERO, upto, 1 << 20)
    assert contents(target) == contents(source)


def test_a_missing_row_stops_it(source: Database, target: Database, tmp_path: Path) -> None:
    following = CloneFollower(source, tmp_path)
    source.run("insert into paired select i, 'x', i from generate_series(1, 10) i")
    begun = following.received()
    with following.writer(target) as write:
        write(Lsn.ZERO, begun, 1 << 20)
        target.run("delete from paired where a in (3, 4)")
        source.run("update paired set c = 0")
        upto = following.received()
        with pytest.raises(TargetDiffers, match=r"public.paired at the target has 8 of 10 rows"):
            write(begun, upto, 1 << 20)
    assert target.run("select count(*), min(c) from paired") == [(8, 1)]


@pytest.mark.full
def test_an_extra_row_stops_it_and_is_named(source: Database, target: Database, tmp_path: Path) -> None:
    following = CloneFollower(source, tmp_path)
    target.run("insert into keyed values (7, 'mine')")
    source.run("insert into keyed select i from generate_series(1, 10) i")
    upto = following.received()
    with following.writer(target) as write, pytest.raises(TargetDiffers, match=r"public.keyed.*\(id\)=\(7\)"):
        write(Lsn.ZERO, upto, 1 << 20)
    assert target.run("select id, v from keyed") == [(7, "mine")]
