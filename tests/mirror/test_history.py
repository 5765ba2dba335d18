"""The history of one row: at every position exactly the version lives that PostgreSQL had there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidemark
from harness.database import Database
from harness.lake import Lakeside, Noted, Row, following, lakeside
from harness.printed import printed
from harness.syncing import syncing
from tests.conftest import NEWEST
from tidemark.clock import Lsn
from tidemark.errors import InvalidValue, NotAnswerable
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.row_history import HISTORY
from tidemark.pipeline.expire.expiry import ExpireOptions, expire_lake
from tidemark.pipeline.sinks import lake_sink
from tidemark.values.cells import DecodedColumn

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

LARGE = "(select string_agg(md5(i::text || '{0}'), '') from generate_series(1, 300) i)"


@dataclass(frozen=True)
class Version:
    row: Row
    begin: Lsn
    end: Lsn | None
    how: tuple[str, str | None]
    xids: tuple[int | None, int | None]
    times: tuple[datetime | None, datetime | None]

    def lives(self, lsn: Lsn) -> bool:
        return self.begin <= lsn and (self.end is None or lsn < self.end)


def versions(frame: DataFrame) -> list[Version]:
    table = frame.toArrow()
    names = [n for n in table.column_names if n not in HISTORY.names and not n.endswith("~text")]
    texts = [table[f"{n}~text"].combine_chunks() if f"{n}~text" in table.column_names else None for n in names]
    cells = [printed(DecodedColumn(table[n].combine_chunks(), text)) for n, text in zip(names, texts, strict=True)]
    rows = list(zip(*cells, strict=True))
    found = []
    for row, said in zip(rows, table.select(HISTORY.names).to_pylist(), strict=True):
        begin, end = (None if said[name] is None else Lsn(said[name]) for name in ("_begin_lsn", "_end_lsn"))
        assert begin is not None
        how = said["_begin_type"], said["_end_type"]
        xids = said["_begin_xid"], said["_end_xid"]
        found.append(Version(row, begin, end, how, xids, (said["_begin_timestamp"], said["_end_timestamp"])))
    return found


def told(mirror: Mirror, table: str, key: object, at: str | Lsn = "latest") -> list[Version]:
    with mirror.at(at) as moment:
        return versions(moment.history(table, key))


def require_noted(
    mirror: Mirror, table: str, keys: list[object], notes: list[Noted], width: int = 1, at: str = "latest"
) -> None:
    """At every position that was noted exactly the row lives that PostgreSQL had."""
    for key in keys:
        found = told(mirror, table, key, at)
        texts = tuple(map(str, key)) if isinstance(key, tuple) else (str(key),)
        for noted in notes:
            there = [row for row in noted.tables[table][1] if row[:width] == texts]
            assert [v.row for v in found if v.lives(noted.lsn)] == there, f"{table} {key} at {noted.lsn}"


@pytest.mark.full
def test_a_dropped_column_whose_values_were_not_sent_again_is_not_missed(side: Lakeside) -> None:
    db = side.database
    db.run(
        f"insert into t values (1, 'a', {LARGE.format('one')}, null)",
        f"insert into whole values (1, 'a', {LARGE.format('two')})",
    )
    side.apply_all()
    db.run(*(f"update {table} set v = 'b'" for table in ("t", "whole")), "update t set id = 2")
    side.apply_all()
    db.run(*(f"alter table {table} drop large" for table in ("t", "whole")))
    side.apply_all()
    side.note("t", "whole")
    side.run_and_note(["update t set v = 'c'", "update whole set v = 'c'"], "t", "whole")
    side.apply_all()
    side.require_noted()
    moment = side.open().at()
    assert [row.v for row in moment.history("t", 2).collect()] == ["b", "c"]
    assert [row.v for row in moment.history("whole", 1).collect()] == ["a", "b", "c"]


def hows(found: list[Version]) -> list[tuple[str, str | None]]:
    return [version.how for version in found]


@pytest.fixture
def side(db: Database, spark: SparkSession, tmp_path: Path) -> Iterator[Lakeside]:
    db.run(
        "create table t (id int primary key, v text, large text, at timestamptz)",
        "alter table t alter large set storage external",
        "create table pair (a text, b int, v float8, primary key (a, b))",
        "create table whole (id bigint primary key, v text, large text)",
        "alter table whole replica identity full",
        "create table bag (v int)",
    )
    with following(lakeside(db, tmp_path, spark, "t", "pair", "whole", "bag")) as made:
        yield made


@pytest.mark.full
def test_at_every_position_the_version_lives_that_postgresql_had(side: Lakeside) -> None:
    one, two = LARGE.format("one"), LARGE.format("two")
    side.run_and_note(
        [
            f"insert into t values (1, 'a', {one}, 'infinity'), (2, 'b', {two}, null)",
            "update t set v = 'c' where id = 1",
            "update t set id = 3, v = 'moved' where id = 1",
            "update t set v = 'after', at = '2024-05-01 12:00+02' where id = 3",
            "delete from t where id = 2",
            "insert into t values (2, 'again', null, null)",
            "begin; insert into t values (5, 'x', null, null); update t set v = 'y' where id = 5; commit",
            "begin; delete from t where id = 5; insert into t values (5, 'z', null, '-infinity'); commit",
            f"update t set id = 1, large = {two} where id = 3",
            "update t set id = 3 where id = 1",
            "update t set id = 7 where id = 3",
            "truncate t",
            "insert into t values (7, 'last', null, null)",
        ],
        "t",
    )
    keys: list[object] = [1, 2, 3, 5, 7, 9]
    side.apply_all()
    mirror = side.open()
    require_noted(mirror, "t", keys, side.notes)
    assert hows(told(mirror, "t", 1)) == [("insert", "update"), ("update", "update"), ("update", "update")]
    assert hows(told(mirror, "t", 2)) == [("insert", "delete"), ("insert", "truncate")]
    assert hows(told(mirror, "t", 5)) == [
        ("insert", "update"),
        ("update", "delete"),
        ("insert", "truncate"),
    ]
    assert hows(told(mirror, "t", 7)) == [("update", "truncate"), ("insert", None)]
    assert told(mirror, "t", 9) == []
    assert hows(told(mirror, "t", 1, side.notes[1].lsn)) == [("insert", "update"), ("update", None)]
    side.fold()
    require_noted(mirror, "t", keys, side.notes)


def test_a_version_says_when_and_by_whom_it_began_and_ended(side: Lakeside) -> None:
    db, xids = side.database, []
    for statement in ("insert into t values (1)", "update t set v = 'a'", "delete from t"):
        before = datetime.now(UTC)
        with db.connect() as session, session.transaction():
            session.execute(statement.encode())
            row = session.execute(b"select pg_current_xact_id()::text::bigint").fetchone()
            assert row is not None
            xids.append((row[0], before))
    side.apply_all()
    first, second = told(side.open(), "t", "1")
    assert first.xids == (xids[0][0], xids[1][0])
    assert second.xids == (xids[1][0], xids[2][0])
    assert first.end == second.begin
    assert first.times[1] == second.times[0]
    for time, (_, before) in zip((*first.times, second.times[1]), xids, strict=True):
        assert time is not None
        assert abs((time - before).total_seconds()) < 60


@pytest.mark.full
def test_keys_of_several_columns_and_whole_old_rows(side: Lakeside) -> None:
    side.run_and_note(
        [
            "insert into pair values ('it''s', 1, 0.0), ('b', -1, 'NaN')",
            "update pair set v = -0.0 where b = 1",
            "update pair set a = 'c' where b = -1",
            f"insert into whole values (1, 'a', {LARGE.format('x')})",
            "update whole set v = 'b'",
            "update whole set id = 2",
            "delete from whole",
        ],
        "pair",
        "whole",
    )
    mirror = tidemark.open(side.options.lake, side.spark, source=side.options.source)
    require_noted(mirror, "whole", [1, 2], side.notes, at="now")
    mirror.close()
    side.apply_all()
    mirror = side.open()
    require_noted(mirror, "pair", [("it's", 1), ("b", -1), ("c", -1)], side.notes, 2)
    require_noted(mirror, "whole", [1, 2], side.notes)
    assert hows(told(mirror, "whole", 2)) == [("update", "delete")]
    assert told(mirror, "pair", {"b": 1, "a": "it's"}) == told(mirror, "pair", ["it's", "1"])
    assert len(told(mirror, "pair", ("it's", 1))) == 2


@pytest.mark.full
def test_a_key_that_is_large_and_not_sent_is_known_by_the_old_one(side: Lakeside) -> None:
    large = LARGE.format("key")
    side.run_and_note(
        [
            f"insert into pair select left({large}, 2500), 1, 1",
            "update pair set v = 2",
            "update pair set b = 2",
            "update pair set b = 3, v = 5",
        ],
        "pair",
    )
    side.apply_all()
    (key,) = side.database.run("select a from pair")[0]
    keys: list[object] = [(key, 1), (key, 2), (key, 3), ("other", 3)]
    require_noted(side.open(), "pair", keys, side.notes, 2)


@pytest.mark.full
def test_what_was_copied_or_is_out_of_the_window_says_so(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row has the large values of an earlier key, in another bucket."""
    monkeypatch.setattr(lake_sink, "buckets_for", lambda _: 8)
    db.run("create table t (id int primary key, v text, large text)")
    db.run(f"insert into t select i, 'copied', {LARGE.format('c')} from generate_series(1, 9) i")
    with syncing(db, tmp_path, spark, "t", folds=False) as synced:
        synced.copy_all()
        db.run("update t set v = 'first' where id < 3")
        synced.note("t")
        db.run("update t set id = 20, v = 'second' where id = 2", "insert into t values (30, 'new', null)")
        synced.note("t")
        synced.catch_up()
        mirror = tidemark.open(synced.options.lake, spark)
        keys: list[object] = [1, 2, 9, 20, 30]
        require_noted(mirror, "t", keys, synced.notes)
        copied = told(mirror, "t", 2)
        assert hows(copied) == [("copy", "update"), ("update", "update")]
        assert copied[0].xids[0] is None
        assert copied[0].times[0] is None
        synced.fold()
        require_noted(mirror, "t", keys, synced.notes)
        expire_lake(synced.options.lake, ExpireOptions(keep_s=None, before=synced.notes[0].lsn, grace_s=0))
        require_noted(mirror, "t", keys, synced.notes)
        assert hows(told(mirror, "t", 2)) == [("before", "update")]
        assert told(mirror, "t", 2)[0].begin == synced.notes[0].lsn
        assert hows(told(mirror, "t", 30)) == [("insert", None)]
        early = synced.catch_up()
        synced.resync("t")
        db.run("delete from t where id = 1")
        synced.note("t")
        synced.catch_up()
        assert hows(told(mirror, "t", 1)) == [("copy", "delete")]
        require_noted(mirror, "t", keys, synced.notes[-1:])
        assert hows(told(mirror, "t", 20, early)) == [("update", None)]


def test_what_is_asked_for_wrongly_is_said(side: Lakeside) -> None:
    side.database.run("insert into t values (1)", "create view odd as select 1")
    side.apply_all()
    moment = side.open().at()
    for table, key, said in (
        ("bag", 1, "has no primary key"),
        ("t", "one", "invalid value for column id of public.t, type int4: 'one'"),
        ("t", (1, 2), r"the key of public\.t is \(id\), but 2 values were given"),
        ("pair", "a", r"the key of public\.pair is \(a, b\), but 1 value was given"),
        ("pair", {"a": 1}, "but a was given"),
        ("t", None, "cannot be null"),
        ("nothing", 1, r"table public\.nothing does not exist"),
    ):
        with pytest.raises(InvalidValue, match=said):
            moment.history(table, key)
    with pytest.raises(NotAnswerable, match="not mirrored yet"):
        side.open().at(Lsn(1)).history("t", 1)


def test_columns_are_the_tables_as_it_is_and_a_name_of_ours_makes_room(side: Lakeside) -> None:
    db = side.database
    db.run("insert into t values (1, 'a')")
    side.apply_all()
    db.run("alter table t add _begin_lsn int default 5", "alter table t drop v")
    side.apply_all()
    db.run("update t set _begin_lsn = 6")
    side.apply_all()
    frame = side.open().at().history("t", 1)
    assert frame.columns[:4] == ["id", "large", "at", "_begin_lsn~5"]
    assert [row["_begin_lsn~5"] for row in frame.collect()] == [5, 6]
