"""Comparisons of a mirror with its source: every type's text, what differs found by key, and standbys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, Database, create_database
from harness.lake import Lakeside, following, lakeside, read_table, require_rows
from harness.outside import path_of
from harness.standby import standby_of, wait_for
from harness.syncing import syncing
from tests.conftest import NEWEST, Start
from tests.mirror.compare.edges import VALUES, split
from tests.pipeline.sync.load import create, writing
from tests.pipeline.sync.test_faults import wrapped
from tidemark.errors import InvalidValue
from tidemark.mirror.compare import narrowing
from tidemark.mirror.compare.comparison import Compared, CompareOptions, Comparison
from tidemark.mirror.compare.narrowing import Difference, Verdict
from tidemark.mirror.compare.source_snapshot import StreamedSnapshot
from tidemark.mirror.moment import Moment
from tidemark.postgres.dsn import Dsn

pytestmark = [pytest.mark.quick, pytest.mark.spark, NEWEST]

TABLES = ("keyed", "bag")


def compared(side: Lakeside, *names: str, source: Dsn | None = None, **options: object) -> dict[str, Compared]:
    mirror = tidemark.open(side.options.lake, side.spark)
    comparison = Comparison(mirror, source or side.options.source, CompareOptions(**options))  # type: ignore[arg-type]
    return {f"{'only ' * each.only}{each.table}": each for each in comparison.run(names)}


@pytest.fixture
def side(db: Database, spark: SparkSession, tmp_path: Path) -> Iterator[Lakeside]:
    db.run(
        "create table t (id int primary key, v text)",
        "create table pair (a text, b uuid, v float8, primary key (a, b))",
        "create table bag (v int)",
        "alter table bag replica identity full",
    )
    with following(lakeside(db, tmp_path, spark, "t", "pair", "bag")) as made:
        yield made


@pytest.mark.full
def test_both_engines_say_every_value_of_every_type_alike(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create type mood as enum ('sad', 'so so')", "create domain share as float8")
    values = {**VALUES, "mood": "'sad', 'so so'", "mood[]": "'{sad,\"so so\"}'", "share": "0.1, 'NaN'"}
    names = [f"c{n}" for n in range(len(values))]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, values, strict=True))
    db.run(f"create table every (id int primary key, {columns})")
    with following(lakeside(db, tmp_path, spark, "every")) as side:
        number = 0
        for name, (kind, listed) in zip(names, values.items(), strict=True):
            for value in split(listed):
                number += 1
                db.run(f"insert into every (id, {name}) values ({number}, cast({value} as {kind}))")
        side.apply_all()
        every = compared(side, "every", values=True)["public.every"]
        assert every.verdict is Verdict.EQUAL, every
        assert every.source is not None
        assert every.source.rows == number
        assert every.source == every.mirror


def spoil(side: Lakeside, table: str, how: Callable[[pa.Table], pa.Table]) -> None:
    """Damage what the lake holds of a table's changes, as no fault of ours may."""
    for file in (side.options.lake / path_of(side.options.lake, table) / "changes").glob("*.parquet"):
        pq.write_table(how(pq.read_table(file)), file)


def put(rows: pa.Table, column: str, value: object, where: pc.Expression) -> pa.Table:
    """The same rows, with another value where a condition holds."""
    at = rows.column_names.index(column)
    marked = rows.append_column("marked", pa.array(range(len(rows)))).filter(where)["marked"]
    values = rows[column].to_pylist()
    for n in marked.to_pylist():
        values[n] = value
    return rows.set_column(at, rows.schema.field(at), pa.array(values, rows.schema.field(at).type))


def differing(done: Compared) -> list[tuple[Difference, str | None]]:
    assert done.found is not None
    return [(each.how, each.key) for each in done.found.differing]


def test_what_differs_is_found_by_its_key_and_shown_when_asked(side: Lakeside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(narrowing, "FEW", 40)
    db = side.database
    db.run(
        "insert into t select i * 3, 'v' || i from generate_series(1, 20000) i",
        "insert into t values (-2147483648, 'lowest'), (2147483647, 'highest')",
        "insert into pair select 'a' || i % 7, md5(i::text)::uuid, i from generate_series(1, 500) i",
        "insert into bag select i % 50 from generate_series(1, 1000) i",
    )
    side.apply_all()
    assert {each.verdict for each in compared(side).values()} == {Verdict.EQUAL}
    field = pc.field
    spoil(side, "t", lambda rows: put(rows.filter(field("id") != 3000), "v", "spoiled", field("id") == 6000))
    spoil(side, "t", lambda rows: put(rows, "id", 6001, field("id") == 6003))
    spoil(side, "pair", lambda rows: put(rows, "v", -0.5, field("v") == 321.0))
    spoil(side, "bag", lambda rows: put(rows.slice(0, len(rows) - 2), "v", 77, field("_ordinal") == 0))
    done = compared(side, values=True)
    assert {each.verdict for each in done.values()} == {Verdict.DIFFERENT}

    assert differing(done["public.t"]) == [
        (Difference.MISSING, "(3000)"),
        (Difference.OTHER, "(6000)"),
        (Difference.EXTRA, "(6001)"),
        (Difference.MISSING, "(6003)"),
    ]
    other = done["public.t"].found.differing[1]  # type: ignore[union-attr]
    assert (other.source, other.other) == (("(6000,v2000)",), ("(6000,spoiled)",))
    ((how, key),) = differing(done["public.pair"])
    assert (how, [(key,)]) == (Difference.OTHER, db.admin("select row(a, b)::text from pair where v = 321"))
    assert Counter(
        (each.how, said) for each in done["public.bag"].found.differing for said in (*each.source, *each.other)  # type: ignore[union-attr]
    ) == Counter({
        (Difference.MISSING, "(1)"): 1, (Difference.MISSING, "(49)"): 1, (Difference.MISSING, "(0)"): 1,
        (Difference.EXTRA, "(77)"): 1,
    })  # fmt: skip

    limited = compared(side, "t", limit=2)["public.t"]
    assert limited.found is not None
    assert limited.found.more
    assert len(limited.found.differing) == 2


@pytest.mark.full
def test_a_parent_is_compared_as_a_session_sees_it_and_alone(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(
        "create table parent (id int primary key, v float8)",
        "create table one (extra text, primary key (id)) inherits (parent)",
        "create table two (primary key (id)) inherits (parent)",
        "create table three (primary key (id)) inherits (one, two)",
    )
    names = ("parent", "one", "two", "three")
    with following(lakeside(db, tmp_path, spark, *(f"only {name}" for name in names))) as side:
        db.run(*(f"insert into {name} select i, i from generate_series(1, 20) i" for name in names))
        side.apply_all()
        rows = {"parent": 80, "one": 40, "two": 40, "only parent": 20, "only one": 20, "only two": 20, "three": 20}
        wanted = {name.replace(" ", " public.") if " " in name else f"public.{name}": n for name, n in rows.items()}
        done = compared(side)
        assert {name: each.source.rows for name, each in done.items() if each.source is not None} == wanted
        assert {each.verdict for each in done.values()} == {Verdict.EQUAL}, done

        with monkeypatch.context() as patched:
            patched.setattr(Moment, "_tree", lambda _, root, **__: [root])
            done = compared(side, "parent")
            assert done["public.parent"].verdict is Verdict.DIFFERENT, "a parent without its children is none"
            assert done["only public.parent"].verdict is Verdict.EQUAL

        spoil(side, "three", lambda rows: rows.filter(pc.field("id") != 7))
        done = compared(side, "parent", values=True)
        assert set(done) == set(wanted), "the tables below it are compared as well"
        assert {name for name, each in done.items() if each.verdict is Verdict.EQUAL} == {
            "only public.parent", "only public.one", "only public.two",
        }  # fmt: skip
        assert differing(done["public.three"]) == [(Difference.MISSING, "(7)")]
        assert differing(done["public.parent"]) == [(Difference.MISSING, None)]
        (missing,) = done["public.parent"].found.differing  # type: ignore[union-attr]
        assert missing.source == ("(7,401c000000000000)",)


@pytest.mark.full
def test_a_tree_that_changes_after_the_snapshot_is_compared_as_the_snapshot_has_it(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    db.run(
        "create table parent (id int primary key)",
        "create table leaves (primary key (id)) inherits (parent)",
        "create table joins (id int primary key)",
    )
    with following(lakeside(db, tmp_path, spark, "only parent", "only leaves", "joins")) as side:
        db.run(*(f"insert into {name} values (1), (2)" for name in ("parent", "leaves", "joins")))
        side.apply_all()

        def alter() -> None:
            db.run("alter table leaves no inherit parent", "alter table joins inherit parent")

        wrapped(monkeypatch, StreamedSnapshot, "_keep", after=alter)
        done = compared(side, "parent")["public.parent"]
        assert done.verdict is Verdict.EQUAL, done
        assert done.source is not None
        assert done.source.rows == 4


@pytest.mark.full
def test_a_parent_with_a_child_that_is_not_mirrored_is_not_compared_and_its_own_rows_are(
    db: Database, spark: SparkSession, tmp_path: Path
) -> None:
    db.run("create table parent (id int primary key)", "create table child (primary key (id)) inherits (parent)")
    with following(lakeside(db, tmp_path, spark, "only parent")) as side:
        db.run("insert into parent values (1)", "insert into child values (2)")
        side.apply_all()
        done = compared(side)
        assert done["public.parent"].verdict is Verdict.NOT_COMPARED
        assert "public.child (oid" in done["public.parent"].reason
        assert done["only public.parent"].verdict is Verdict.EQUAL


@pytest.mark.full
def test_a_sample_is_the_same_rows_on_both_sides(side: Lakeside) -> None:
    db = side.database
    db.run(
        "insert into t select i, 'v' || i from generate_series(1, 2000) i",
        "insert into pair select i, md5(i::text)::uuid, i from generate_series(1, 2000) i",
        "insert into bag select i % 50 from generate_series(1, 2000) i",
    )
    side.apply_all()
    for done in compared(side, sample=1000).values():
        assert done.verdict is Verdict.EQUAL, done
        assert done.source is not None
        assert 0 < done.source.rows < 1000
    spoil(side, "t", lambda rows: put(rows, "v", "spoiled", pc.field("id") > 0))
    sampled = compared(side, "t", sample=1000)["public.t"]
    assert sampled.verdict is Verdict.DIFFERENT


@pytest.mark.full
def test_what_cannot_be_compared_says_why_and_the_others_are(side: Lakeside) -> None:
    db = side.database
    db.run("insert into t values (1, 'one')", "insert into bag values (1)")
    side.apply_all()
    with db.connect() as holder:
        holder.execute(b"begin; lock table t in access exclusive mode")
        done = compared(side)
        holder.execute(b"rollback")
    assert done["public.t"].verdict is Verdict.NOT_COMPARED
    assert "t" in done["public.t"].reason
    assert done["public.bag"].verdict is Verdict.EQUAL
    db.run("insert into bag values (2)", "delete from bag where v = 2")
    side.apply_all()
    spoil(side, "bag", lambda rows: rows.filter((pc.field("v") != 2) | (pc.field("_change_type") != "insert")))
    assert "deleted more often than it was inserted" in compared(side, "bag")["public.bag"].reason
    db.run("revoke select on t from public", f"revoke select on t from {MIRROR}")
    assert "permission denied" in compared(side, "t")["public.t"].reason
    with pytest.raises(InvalidValue, match=r"table public\.nowhere does not exist"):
        compared(side, "nowhere")


@pytest.mark.full
def test_under_load_every_table_is_what_the_source_shows(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    create(db, *TABLES)
    with syncing(db, tmp_path, spark, *TABLES) as synced:
        synced.copy_all()
        with writing(db, *TABLES, writers=6):
            for _ in range(2):
                synced.replication.step()
                mirror = tidemark.open(synced.options.lake, spark)
                for done in Comparison(mirror, synced.options.source, CompareOptions()).run():
                    assert done.verdict is Verdict.EQUAL, done
                    assert done.source is not None
                    assert done.source.rows > 0


@pytest.mark.full
def test_a_standby_is_compared_with_and_read_as_it_is(start: Start, spark: SparkSession, tmp_path: Path) -> None:
    db = create_database(start())
    create(db, *TABLES)
    with standby_of(db) as there, syncing(db, tmp_path, spark, *TABLES) as synced:
        synced.copy_all()
        source = there.dsn(MIRROR)
        mirror = tidemark.open(synced.options.lake, spark, source=source)
        with writing(db, *TABLES, writers=4):
            for _ in range(2):
                synced.replication.step()
                done = {each.table: each for each in Comparison(mirror, source, CompareOptions()).run()}
                assert {each.verdict for each in done.values()} == {Verdict.EQUAL}, done
        wait_for(there, db)
        with there.session() as session, mirror.at("now") as now:
            assert not now.boundary.excluded
            for table in TABLES:
                require_rows(now.table(table), *read_table(session, table), table)
        mirror.close()


@pytest.mark.full
def test_on_a_standby_what_ran_at_its_snapshot_is_not_compared(
    start: Start, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL forgets which transactions ran when a standby exports its snapshot, if they have subtransactions."""
    db = create_database(start())
    tables = {f"t{n}": f"create table t{n} (id int primary key, v text)" for n in range(4)}
    db.run(*tables.values())
    with (
        standby_of(db) as there,
        following(lakeside(db, tmp_path, spark, *tables)) as side,
        db.connect() as writer,
    ):
        side.apply_all()
        db.run(*(f"insert into {table} select generate_series(1, 100), 'early'" for table in tables))
        side.apply_all()
        writer.execute(b"begin; savepoint s; update t0 set v = 'late'; delete from t1; insert into t2 values (0)")
        db.run("update t3 set v = 'seen'")
        wait_for(there, db)

        def commit() -> None:
            writer.execute(b"commit")
            wait_for(there, db)

        wrapped(monkeypatch, StreamedSnapshot, "_keep", after=commit)
        for each in compared(side, source=there.dsn(MIRROR)).values():
            assert each.verdict is Verdict.EQUAL, each
            assert each.source is not None
            assert each.source.rows == 100
