"""The mirror as people read it: handles at positions, tables and queries by name, changes between positions."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
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


@pytest.fixture(scope="session", params=list(installs().values())[-1:], ids=lambda each: f"pg{each.major}")
def install(request: pytest.FixtureRequest) -> Install:
    assert isinstance(request.param, Install)
    return request.param


@pytest.fixture(scope="module")
def side(server: Server, spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakeside]:
    database = create_database(server)
    database.run("create table orders (id int primary key, customer int, total numeric(10,2), at timestamptz)")
    database.run("create table customers (id int primary key, name text)")
    with following(lakeside(database, tmp_path_factory.mktemp("side"), spark, "orders", "customers")) as made:
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
    with pytest.raises(NotAnswerable, match="which this boundary does not see"):
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
    with pytest.raises(NotAnswerable, match="beyond what the mirror has seen"):
        mirror.at(datetime.now(UTC) + timedelta(days=1))


def test_what_cannot_be_answered_is_refused_with_what_can(side: Lakeside, tmp_path: Path) -> None:
    mirror = side.open()
    latest = mirror.at().lsn
    with pytest.raises(NotAnswerable, match="knows all up to") as refused:
        mirror.at(Lsn(latest.value + 1_000_000))
    assert str(latest) in refused.value.hint
    with pytest.raises(NotAnswerable, match="not mirrored yet") as refused:
        mirror.at(Lsn(1)).table("orders")
    assert "from " in refused.value.hint
    with pytest.raises(InvalidValue, match="not a position"):
        mirror.at("yesterday")
    with pytest.raises(InvalidValue, match=r"no table public\.order in") as unknown:
        mirror.table("order")
    assert "public.orders" in unknown.value.hint
    with pytest.raises(LakeMissing, match="is not a Tidemark lake"):
        tidemark.open(tmp_path, side.spark)


def test_a_value_that_spark_has_no_room_for_is_never_read_as_null(side: Lakeside) -> None:
    moment = side.open().at()
    assert moment.sql("select max(at) from orders where id > 1").collect()[0][0] is not None
    assert moment.sql("select `at~text` from orders where id = 1").collect()[0][0] == "infinity"
    with pytest.raises(SparkRuntimeException, match="no room for: infinity"):
        moment.sql("select max(at) from orders").collect()


def test_changes_have_sparks_names_and_stand_between_two_positions(side: Lakeside) -> None:
    mirror, notes = side.open(), side.notes
    ((inserted,),) = mirror.changes("orders", Lsn.ZERO, notes[3].lsn).selectExpr("min(_commit_version)").collect()
    feed = mirror.changes("orders", Lsn(inserted), notes[3].lsn)
    assert {"_change_type", "_commit_version", "_commit_timestamp", "_ordinal", "_xid"} < set(feed.columns)
    counts = {row[0]: row[1] for row in feed.groupBy("_change_type").count().collect()}
    assert counts == {"insert": 10, "update_postimage": 5, "delete": 2}
    later = mirror.changes("orders", Lsn(inserted + 1), notes[3].lsn)
    assert later.where("_change_type = 'insert'").count() == 0


def test_the_plan_of_a_table_that_was_only_inserted_into_is_a_plain_scan(side: Lakeside) -> None:
    frame = side.open().at(side.notes[0].lsn).table("customers").where("id = 1").select("name")
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "Exchange" not in plan
    assert "PushedFilters: [IsNotNull(id), EqualTo(id,1)]" in plan
    assert frame.collect()[0][0] == "Ada"


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
