"""The mirror as people read it: handles at positions, tables and queries by name, changes between positions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.errors import SparkRuntimeException
from pyspark.sql import SparkSession

import tidemark
from harness.database import Database, create_database
from harness.lake import Lakeside, by_spark, following, lakeside, require_rows
from harness.postgres import Install, Server, installs
from tidemark.clock import Boundary, Lsn
from tidemark.errors import InvalidValue, LakeMissing, NotAnswerable

pytestmark = pytest.mark.quick

BITING = [
    ('"O\'Hara"', '"it\'s ""quoted"""', ['"a b"', '"c,d;e"', '"{f}(g)"', '"h=i"', '"a.b"', '"k`l"', '"m\tn"']),
    ('"%41"', '".."', ['"select"', '"from"', '"_change_type"', '"_ORDINAL"', '"x~text"', '"x~2"']),
    ('"a/b\\c"', '"[u]{v}*?"', ['"Case"', '"case"', '"CASE"', '"%2F"', '"é"']),
    ('"_hidden"', '"_cycles"', ['"' + "ü" * 31 + '"', '"' + "日" * 21 + '"', '"~7E"']),
    ('"Public"', '"T"', ['"ID"', '"iD"']),
    ('"Public"', '"t"', ["v"]),
]


# Columns that have a value which Spark's type cannot hold, in row 2.
ODD = {
    "d": "date",
    "ts": "timestamp",
    "tz": "timestamptz",
    "n": "numeric(6,2)",
    "arr": "int[]",
    "f": "float8[]",
    "words": "text[]",
}


@pytest.fixture(scope="session", params=list(installs().values())[-1:], ids=lambda each: f"pg{each.major}")
def install(request: pytest.FixtureRequest) -> Install:
    assert isinstance(request.param, Install)
    return request.param


@pytest.fixture(scope="module")
def side(server: Server, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakeside]:
    database = create_database(server)
    database.run("create table orders (id int primary key, customer int, total numeric(10,2), at timestamptz)")
    database.run("create table customers (id int primary key, name text)")
    database.run(f"create table odd (id int primary key, {', '.join(f'{name} {kind}' for name, kind in ODD.items())})")
    with following(lakeside(database, tmp_path_factory.mktemp("side"), spark, "orders", "customers", "odd")) as made:
        database.run(
            """insert into odd values
            (1, '2024-02-29', '2024-02-29 01:02:03.5', '2024-02-29 01:02:03+02', 1.50, '{1,NULL,3}', '{0.1,1e20,NaN}',
             '{"a b",NULL,"NULL","",x}'),
            (2, 'infinity', '-infinity', '0044-03-15 12:00:00+00 BC', 'NaN', '{{1,2},{3,4}}', '[0:1]={1,2}', '{{x}}')"""
        )
        database.run("update odd set d = '2024-03-01' where id = 1")
        made.run_and_note(["insert into customers values (1, 'Ada'), (2, 'Grace')"], "orders", "customers")
        made.apply_all()
        made.run_and_note(
            [
                "insert into orders select i, i % 2 + 1, i, '2024-05-01' from generate_series(1, 10) i",
                "update orders set total = total + 0.5 where customer = 1",
                "begin; delete from orders where id > 8; update customers set name = 'Hopper' where id = 2; commit",
                "update orders set at = 'infinity' where id = 1",
            ],
            "orders",
            "customers",
        )
        made.apply_all()
        yield made
    database.drop()


def test_a_query_joins_tables_as_they_were_at_one_position(side: Lakeside) -> None:
    mirror, answers = side.open(), []
    query = "select c.name, sum(o.total) from orders o join public.customers c on c.id = o.customer group by 1"
    for noted in side.notes[1:]:
        answers.append({row[0]: row[1] for row in mirror.at(noted.lsn).sql(query).collect()})
        names = {row[0]: row[1] for row in noted.tables["customers"][1]}
        sums: dict[str | None, Decimal] = defaultdict(Decimal)
        for row in noted.tables["orders"][1]:
            sums[names[row[1]]] += Decimal(str(row[2]))
        assert answers[-1] == sums
    assert answers[0] != answers[-1]


@pytest.mark.full
def test_handles_do_not_disturb_each_other(side: Lakeside) -> None:
    mirror = side.open()
    early, late = mirror.at(side.notes[1].lsn), mirror.at(side.notes[3].lsn)
    frames = early.sql("select count(*) from orders"), late.sql("select count(*) from orders")
    assert [frame.collect()[0][0] for frame in frames] == [10, 8]
    assert early.table("orders").join(late.table("orders"), "id", "left_anti").count() == 2


def test_commits_that_a_boundary_excludes_are_not_seen(side: Lakeside) -> None:
    mirror, notes = side.open(), side.notes
    commits = [int(row[0]) for row in mirror.changes("orders", Lsn.ZERO).select("_commit_version").distinct().collect()]
    update = min(lsn for lsn in commits if lsn > notes[1].lsn.value)
    without = Boundary(notes[2].lsn, frozenset({Lsn(update)}))
    require_rows(mirror.at(without).table("orders"), *notes[1].tables["orders"], "without the update")
    early = Boundary(notes[2].lsn, frozenset({Lsn(1)}))
    with pytest.raises(NotAnswerable, match="which is not visible here"):
        mirror.at(early).table("orders")


def test_a_time_means_the_last_commit_before_it(side: Lakeside) -> None:
    mirror = side.open()
    rows = mirror.changes("customers", "0/0").select("_commit_version", "_commit_timestamp").distinct().collect()
    first = min(row[0] for row in rows)
    moment = datetime.fromtimestamp(min(row[1] for row in rows).timestamp(), UTC)
    assert mirror.at(moment).lsn == mirror.at(str(moment)).lsn == Lsn(first)
    assert mirror.at(moment).table("customers").count() == 2
    with pytest.raises(NotAnswerable, match="before the first commit"):
        mirror.at(moment - timedelta(days=1))
    with pytest.raises(NotAnswerable, match="is too recent: the mirror is complete up to"):
        mirror.at(datetime.now(UTC) + timedelta(days=1))


def test_what_cannot_be_answered_is_refused_with_what_can(side: Lakeside, tmp_path: Path) -> None:
    mirror = side.open()
    latest = mirror.at().lsn
    with pytest.raises(NotAnswerable, match="is complete up to") as refused:
        mirror.at(Lsn(latest.value + 1_000_000))
    assert str(latest) in refused.value.hint
    with pytest.raises(NotAnswerable, match="not mirrored yet") as refused:
        mirror.at(Lsn(1)).table("orders")
    assert "from " in refused.value.hint
    with pytest.raises(InvalidValue, match="invalid position"):
        mirror.at("someday")
    with pytest.raises(InvalidValue, match=r"table public\.order does not exist") as unknown:
        mirror.table("order")
    assert "public.orders" in unknown.value.hint
    with pytest.raises(LakeMissing, match="is not a Tidemark lake"):
        tidemark.open(tmp_path, side.spark)


def test_a_value_that_spark_has_no_room_for_is_never_read_as_null(side: Lakeside) -> None:
    moment = side.open().at()
    assert moment.sql("select max(at) from orders where id > 1").collect()[0][0] is not None
    assert moment.sql("select `at~text` from orders where id = 1").collect()[0][0] == "infinity"
    with pytest.raises(SparkRuntimeException, match="cannot hold: infinity"):
        moment.sql("select max(at) from orders").collect()


def test_a_column_with_values_that_spark_cannot_hold_is_read_as_postgresqls_text(side: Lakeside) -> None:
    mirror, names = side.open(), list(ODD)
    as_text = ", ".join(f"{name}::text" for name in names)
    wanted = [list(row) for row in side.database.run("set timezone = 'UTC'", f"select {as_text} from odd order by id")]
    with mirror.at() as moment:
        qualified = [f"odd.{name}" for name in names]
        frames = (
            moment.table("odd", text=names),
            moment.sql("select * from odd", text=qualified),
            moment.sql(f"select /*+ TEXT({', '.join(qualified)}) */ * from public.odd"),
        )
        for frame in frames:
            assert frame.columns == ["id", *names]
            assert {kind for _, kind in frame.dtypes[1:]} == {"string"}
            assert [list(row)[1:] for row in frame.orderBy("id").collect()] == wanted
        versions = moment.history("odd", 2, text=names).collect()
        assert [[row[name] for name in names] for row in versions] == wanted[1:]
        net = moment.diff("odd", side.notes[0].lsn, text="d").select("id", "d").orderBy("id").collect()
        assert net == []
        changes = moment.changes("odd", text=names).where("id = 2").select(*names).collect()
        assert [list(row) for row in changes] == wanted[1:]
        typed = moment.sql("select d, n from odd where id = 1", text="n").collect()
        assert [tuple(row) for row in typed] == [(date(2024, 3, 1), "1.50")]


def test_columns_carry_their_postgresql_type_in_the_schema(side: Lakeside) -> None:
    """Typed or as text, in tables, queries, changes, history and differences, and after a select by another name."""
    query = "select attname, atttypid, atttypmod, format_type(atttypid, atttypmod) from pg_attribute"
    found = side.database.run(f"{query} where attrelid = 'public.odd'::regclass and attnum > 0")
    wanted = {name: {"oid": int(oid), "typmod": typmod, "type": kind} for name, oid, typmod, kind in found}
    with side.open().at() as moment:
        for frame in (
            moment.table("odd"),
            moment.table("odd", text=list(ODD)),
            moment.table("odd").where("id > 1").join(moment.table("orders").select("at"), how="cross"),
            moment.sql("select * from odd", text="odd.d"),
            moment.changes("odd"),
            moment.history("odd", 2),
            moment.diff("odd", side.notes[0].lsn),
        ):
            carried = {field.name: field.metadata.get("postgres") for field in frame.schema.fields}
            assert {name: carried[name] for name in wanted} == wanted
        schema = moment.sql("select d as due, upper(n) as n, count(*) over () as c from odd", text=["d", "n"]).schema
        assert [field.metadata.get("postgres") for field in schema.fields] == [wanted["d"], None, None]


def test_the_error_about_a_value_that_spark_cannot_hold_names_the_option_that_returns_it(side: Lakeside) -> None:
    with side.open().at() as moment:
        for name in ("d", "ts", "tz", "n", "arr"):
            with pytest.raises(SparkRuntimeException, match=f"column {name} of public.odd has a value") as refused:
                moment.table("odd").select(name).collect()
            for option in (f"text=['odd.{name}']", f"--text odd.{name}", f"/*+ TEXT(odd.{name}) */"):
                assert option in str(refused.value)
        with pytest.raises(InvalidValue, match=r"column odd\.nothing, to be read as text, does not exist"):
            moment.sql("select * from odd", text="odd.nothing")
        with pytest.raises(InvalidValue, match=r"column orders\.at, to be read as text, does not exist in the tables"):
            moment.sql("select * from odd", text=["odd.d", "orders.at"])


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("select id,\n  nope from orders", "column `nope` does not exist (line 2, column 3)"),
        ("select 1 from orders o join customers c on o.id = c.ident", "`c`.`ident` does not exist (line 1, column 51)"),
        ("select nofunc(id) from orders", "function `nofunc` does not exist in Spark (line 1, column 8)"),
        ("select id from orders where total = array(1)", "data type mismatch"),
        ("select id from orders where total = array(1)", "(line 1, column 29)"),
        ("select id, count(*) from public.orders", "does not include a GROUP BY clause (line 1, column 1)"),
        ("select id from orders, customers", "is ambiguous"),
        ("select id from orders union select 1, 2", "the same number of columns"),
        ("select /*+ TEXT(at) */ nope from orders", "(line 1, column 24)"),
    ],
)
def test_errors_of_spark_are_about_the_statement_that_was_typed(
    side: Lakeside, sql: str, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with side.open().at() as moment, pytest.raises(InvalidValue) as refused:
        moment.sql(sql)
    assert message in refused.value.message
    for internal in ("_pyspark", "org.apache", "SQLSTATE", "spark.sql."):
        assert internal not in str(refused.value)
    assert "org.apache" not in capfd.readouterr().err


@pytest.mark.full
def test_changes_diff_and_history_take_the_same_positions(side: Lakeside) -> None:
    with side.open() as mirror:
        one, two = side.notes[1].lsn, side.notes[2].lsn
        positions = (str(one), one, one.value, Boundary(one), mirror.time_of(one).latest)
        for position in (*positions, str(mirror.time_of(one).latest)):
            assert mirror.changes("orders", position, two).count() == 5, position
            assert mirror.diff("orders", position, two).count() == 10, position
            assert mirror.history("orders", 1, position).count() == 1, position
        without = Boundary(two, frozenset({Lsn(mirror.changes("orders", one, two).head(1)[0]["_commit_version"])}))
        assert mirror.changes("orders", one, without).count() == 0
        assert mirror.changes("orders", without, two).count() == 5
        begin = mirror.history("orders", 1).head(1)[0]["_begin_lsn"]
        assert mirror.at(begin).table("orders").count() == 10


def test_a_mirror_and_a_moment_have_a_table_for_notebooks(side: Lakeside) -> None:
    with side.open() as mirror, mirror.at() as moment:
        shown = mirror._repr_html_(), moment._repr_html_()
        for html in shown:
            assert "<td>public.orders</td>" in html
            assert str(moment.lsn) in html
            assert "total numeric" in html
        assert moment.time is not None
        assert f"{moment.time:%Y-%m-%d %H:%M:%S} UTC" in shown[1]
        by_name = {table.name: table for table in mirror.tables}
        assert by_name["public.orders"].state == "readable"
        assert [column.name for column in by_name["public.orders"].columns] == ["id", "customer", "total", "at"]


def test_changes_have_sparks_names_and_stand_between_two_positions(side: Lakeside) -> None:
    mirror, notes = side.open(), side.notes
    ((inserted,),) = mirror.changes("orders", Lsn.ZERO, notes[3].lsn).selectExpr("min(_commit_version)").collect()
    feed = mirror.changes("orders", Lsn(inserted).before(), notes[3].lsn)
    assert {"_change_type", "_commit_version", "_commit_timestamp", "_ordinal", "_xid"} < set(feed.columns)
    counts = {row[0]: row[1] for row in feed.groupBy("_change_type").count().collect()}
    assert counts == {"insert": 10, "update_postimage": 5, "delete": 2}
    later = mirror.changes("orders", Lsn(inserted), notes[3].lsn)
    assert later.where("_change_type = 'insert'").count() == 0


def test_the_plan_of_a_table_that_was_only_inserted_into_is_a_plain_scan(side: Lakeside) -> None:
    frame = side.open().at(side.notes[0].lsn).table("customers").where("id = 1").select("name")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Exchange" not in plan
    assert "PushedFilters: [IsNotNull(id), EqualTo(id,1)]" in plan
    assert frame.collect()[0][0] == "Ada"


@pytest.mark.full
def test_names_that_bite_are_read_by_their_names(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    tables = []
    for schema, table, columns in BITING:
        db.run(f"create schema if not exists {schema}")
        db.run(
            f"create table {schema}.{table} (id int primary key, {', '.join(f'{column} text' for column in columns)})"
        )
        tables.append(f"{schema}.{table}")
    with following(lakeside(db, tmp_path, spark, *tables)) as side:
        for schema, table, columns in BITING:
            values = ", ".join(f"'{at}'" for at in range(len(columns)))
            db.run(
                f"insert into {schema}.{table} values (1, {values})", f"update {schema}.{table} set {columns[0]} = 'u'"
            )
        noted = side.note(*tables)
        side.apply_all()
        moment = side.open().at(noted.lsn)
        for name in tables:
            wanted, rows = noted.tables[name]
            found_columns, found = by_spark(moment.table(name))
            assert found == rows, name
            plain = [each if each in wanted else each.rpartition("~")[0] for each in found_columns]
            assert plain == list(wanted)
        answer = moment.sql("select `a.b`, `k``l` from `O'Hara`.`it's \"quoted\"`").collect()
        assert tuple(answer[0]) == ("4", "5")


@pytest.mark.full
def test_reading_works_on_a_spark_connect_session(side: Lakeside) -> None:
    program = (
        "import json, sys, tidemark\n"
        "from tidemark.spark import SparkOptions, spark_session\n"
        "spark = spark_session(SparkOptions(remote='local[1]', conf={'spark.ui.enabled': 'false'}))\n"
        "moment = tidemark.open(sys.argv[1], spark).at(sys.argv[2])\n"
        "rows = moment.sql('select id, total from orders order by id').collect()\n"
        "print(json.dumps([[row[0], str(row[1])] for row in rows]))\n"
    )
    noted = side.notes[3]
    command = [sys.executable, "-c", program, str(side.options.lake), str(noted.lsn)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    expected = sorted([int(str(row[0])), row[2]] for row in noted.tables["orders"][1])
    assert json.loads(printed.splitlines()[-1]) == expected
