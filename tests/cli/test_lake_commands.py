"""apply, compare, diff, fold, history, query, status, expire and when from a shell, and what they print."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.lake import Lakeside, following, lakeside
from harness.outside import path_of
from harness.postgres import Install, installs
from harness.shell import NO_SPARK, here, tidemark
from tests.documentation.keys import require_documented
from tidemark.cli.frames import print_frame
from tidemark.cli.printing import print_records
from tidemark.clock import Lsn
from tidemark.errors import ExitCode
from tidemark.lake.changes import read_changes
from tidemark.lake.lake import Lake
from tidemark.lake.versions import read_versions
from tidemark.log.reader import LogReader
from tidemark.pipeline.fold import change_files

pytestmark = pytest.mark.quick


@pytest.fixture(scope="session", params=list(installs().values())[-1:], ids=lambda each: f"pg{each.major}")
def install(request: pytest.FixtureRequest) -> Install:
    assert isinstance(request.param, Install)
    return request.param


@pytest.mark.full
def test_apply_query_and_status_from_a_shell(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run("insert into t values (1, 'one'), (2, null)")
        ((snapshot, first),) = db.run("select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text")
        db.run("update t set v = 'two' where id = 2")
        side.mirror.catch_up()
        applied = _apply(side)
        assert applied.returncode == ExitCode.OK, applied.stderr
        assert applied.stdout.startswith("complete up to ")
        asked = ["query", str(side.options.lake), "select * from t order by id", "--format", "csv"]
        for at in (["--at", first], ["--at", first, "--snapshot", snapshot]):
            query = here(*asked, *at)
            assert query.stdout == "id,v\n1,one\n2,\n", query.stderr
        twice = "select a.id, b.id from t a join t b on a.id = b.id order by 1"
        query = here("query", str(side.options.lake), twice, "--format", "csv")
        assert query.stdout == "id,id\n1,1\n2,2\n", query.stderr
        db.run("insert into t values (3, 'only just')")
        now = tidemark(*asked, "--at", "now", "--source", side.options.source.reveal())
        assert now.stdout == "id,v\n1,one\n2,two\n3,only just\n", now.stderr
        _query_as_postgresql(side)
        _status(side)
        _compare(side)


def _query_as_postgresql(side: Lakeside) -> None:
    lake, source = str(side.options.lake), side.options.source.reveal()
    statement = "select count(*), to_char(avg(id), '0.000') as mean, min(id) from t where id < 3"
    asked = ["query", lake, statement, "--dialect", "postgres", "--format", "csv"]
    found = here(*asked, "--source", source)
    assert found.stdout == "count,mean,min\n2, 1.500,1\n", found.stderr
    assert here(*asked).returncode == ExitCode.USAGE
    asked[2] = "select * from generate_series(1, 2)"
    refused = here(*asked, "--source", source)
    assert (refused.returncode, refused.stdout) == (ExitCode.NOT_ANSWERABLE, ""), refused.stderr
    assert "not proven to be answered exactly" in refused.stderr
    assert "Hint: Run the statement at the source" in refused.stderr
    asked[2] = "select nothing from t"
    wrong = here(*asked, "--source", source)
    assert wrong.returncode == ExitCode.USAGE
    assert 'column "nothing" does not exist' in wrong.stderr


def _compare(side: Lakeside) -> None:
    asked = ["compare", str(side.options.lake), "--source", side.options.source.reveal()]
    equal = here(*asked)
    assert equal.returncode == ExitCode.OK, equal.stderr
    where, told = equal.stdout.splitlines()
    assert where.startswith("compared at 0/")
    assert told.startswith("equal         public.t  3 rows  ")
    (file, *_) = (side.options.lake / path_of(side.options.lake, "t") / "changes").glob("*.parquet")
    rows = pq.read_table(file)
    pq.write_table(rows.slice(0, len(rows) - 1), file)
    other = here(*asked, "t", "--json", "--values")
    assert other.returncode == ExitCode.DIFFERENT, other.stderr
    plain = json.loads(other.stdout)
    require_documented("compare", plain)
    assert (plain["table"], plain["verdict"], plain["source"]["rows"]) == ("public.t", "different", 3)
    assert {each["difference"] for each in plain["differing"]} <= {"missing", "different"}
    assert all(each["source"] for each in plain["differing"])
    assert here(*asked[:2]).returncode == ExitCode.USAGE


@pytest.mark.full
def test_fold_and_vacuum_from_a_shell(
    db: Database, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_files, "MANY", 3)
    monkeypatch.setattr(change_files, "GROWTH", 1)
    db.run("create table t (id int primary key, v text)", "create table u (id int primary key)")
    with following(lakeside(db, tmp_path, spark, "t", "u")) as side:
        lake = str(side.options.lake)
        db.run("insert into t select i, 'v' from generate_series(1, 500) i")
        side.apply_all()
        strange = here("fold", lake, "nothing")
        assert strange.returncode == ExitCode.USAGE
        assert f"{lake} has no table public.nothing" in strange.stderr
        tried = here("fold", lake, "--dry-run")
        assert tried.stdout.startswith("public.t  would be folded to "), tried.stderr
        require_documented("fold", json.loads(here("fold", lake, "t", "--dry-run", "--json").stdout))
        assert read_versions(side.options.lake, path_of(side.options.lake, "t")) is None
        folded = tidemark("fold", lake, "t", "--master", "local[1]")
        assert "public.t  folded to" in folded.stdout, folded.stderr
        db.run("update t set v = 'w'")
        side.note("t")
        side.apply_all()
        for n in range(3):
            db.run(f"insert into u values ({n})")
            side.apply_all()
        files = len(read_changes(side.options.lake, path_of(side.options.lake, "u"), Lsn.ZERO).files)
        merged = here("fold", lake, "--all")
        assert f"public.u  compacted  ({files} files of changes became 1)" in merged.stdout, merged.stderr
        with side.open().at(side.notes[0].lsn):
            shown = tidemark("expire", lake, "--keep", "0s", "--grace", "0s", "--dry-run", program=NO_SPARK)
            assert shown.returncode == ExitCode.OK, shown.stderr
            assert "keeps older data from being deleted" in shown.stdout
            assert "would delete" in shown.stdout
        before = str(side.notes[0].lsn)
        done = tidemark("expire", lake, "--before", before, "--grace", "0s", program=NO_SPARK)
        assert done.stdout.splitlines()[-1] == f"retained LSN: {before}", done.stderr
        assert "public.t changes, expired: deleted 2 files" in done.stdout
        plain = json.loads(tidemark("status", lake, "--json", program=NO_SPARK).stdout)
        require_documented("status", plain)
        assert plain["retained_lsn"] == before
        assert plain["tables"][0]["folded_lsn"] is not None
        side.require_noted()
        for wrong in (["--keep", "7"], ["--keep", "1d", "--before", before], ["--before", "here"]):
            told = tidemark("expire", lake, *wrong, program=NO_SPARK)
            assert told.returncode == ExitCode.USAGE, wrong


@pytest.mark.full
def test_history_diff_and_when_from_a_shell(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int, at timestamptz, v text, primary key (id, at))")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        lake = str(side.options.lake)
        db.run("insert into t values (-1, 'infinity', 'one')")
        first = side.apply_all()
        db.run("update t set v = 'two'")
        side.apply_all()
        told = here("history", lake, "t", "--format", "jsonl", "--", "-1", "infinity")
        assert told.returncode == ExitCode.OK, told.stderr
        one, two = (json.loads(line) for line in told.stdout.splitlines())
        assert (one["v"], one["_begin_type"], one["_end_type"]) == ("one", "insert", "update")
        assert (two["id"], two["at"], two["at~text"], two["v"]) == (-1, None, "infinity", "two")
        assert two["_begin_lsn"] == one["_end_lsn"]
        assert two["_end_lsn"] is None
        wrong = here("history", lake, "t", "x", "infinity")
        assert wrong.returncode == ExitCode.USAGE
        assert "invalid value for column id of public.t" in wrong.stderr
        differ = here("diff", lake, "t", "--from", str(first), "--format", "csv")
        assert differ.stdout.splitlines() == [
            "id,at,at~text,v,_change_type",
            "-1,,infinity,one,update_preimage",
            "-1,,infinity,two,update_postimage",
        ], differ.stderr
        _when(lake, two)
        _changes_and_tables(lake, str(first))
        _queries(lake)


@pytest.mark.full
def test_a_parent_and_its_own_rows_from_a_shell(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table parent (id int primary key)", "create table child (primary key (id)) inherits (parent)")
    with following(lakeside(db, tmp_path, spark, "only parent", "only child")) as side:
        lake = str(side.options.lake)
        first = str(side.apply_all())
        db.run("insert into parent values (1)", "insert into child values (2)")
        side.apply_all()
        for table, ids in (("parent", ["1", "2"]), ("only parent", ["1"])):
            query = here("query", lake, f"select id from {table} order by id", "--format", "csv")
            assert query.stdout.splitlines() == ["id", *ids], query.stderr
        refused = here("history", lake, "parent", "1")
        assert refused.returncode == ExitCode.NOT_ANSWERABLE
        assert "public.child inherits from parent" in refused.stderr
        assert "--only" in refused.stderr
        told = here("history", lake, "parent", "1", "--only", "--format", "jsonl")
        assert json.loads(told.stdout)["id"] == 1, told.stderr
        for only, ids in (([], ["1,insert", "2,insert"]), (["--only"], ["1,insert"])):
            differ = here("diff", lake, "parent", "--from", first, "--format", "csv", *only)
            assert sorted(differ.stdout.splitlines()[1:]) == ids, differ.stderr
        compare = ["compare", lake, "--source", side.options.source.reveal()]
        equal = here(*compare)
        found = sorted(" ".join(line.split()[:-3]) for line in equal.stdout.splitlines()[1:])  # as they end
        assert found == [
            "equal public.child 1 rows",
            "equal public.parent (without inheriting tables) 1 rows",
            "equal public.parent 2 rows",
        ], equal.stderr
        plain = [json.loads(line) for line in here(*compare, "--json").stdout.splitlines()]
        tables = sorted((each["table"], each["only"]) for each in plain)
        assert tables == [("public.child", False), ("public.parent", False), ("public.parent", True)]


def _changes_and_tables(lake: str, first: str) -> None:
    every = here("changes", lake, "t", "--text", "at", "--format", "jsonl")
    assert every.returncode == ExitCode.OK, every.stderr
    changes = [json.loads(line) for line in every.stdout.splitlines()]
    kinds = [("one", "insert"), ("two", "update_postimage")]
    assert [(each["v"], each["_change_type"]) for each in changes] == kinds
    assert {each["at"] for each in changes} == {"infinity"}
    assert Lsn.parse(changes[0]["_commit_version"]) <= Lsn.parse(first) < Lsn.parse(changes[1]["_commit_version"])
    later = here("changes", lake, "t", "--from", first, "--to", "latest", "--text", "at", "--format", "csv")
    assert len(later.stdout.splitlines()) == 2, later.stderr
    listed = tidemark("tables", lake, "--format", "json", program=NO_SPARK)
    (table,) = json.loads(listed.stdout)
    assert (table["table"], table["state"], table["reason"], table["fix"]) == ("public.t", "readable", None, None)
    assert [column["name"] for column in table["columns"]] == ["id", "at", "v"]


def _queries(lake: str) -> None:
    """Values that Spark cannot hold, and errors: about what was typed, with no trace of the JVM."""
    shown = here("query", lake, "select * from t", "--text", "t.at", "--format", "csv")
    assert shown.stdout.splitlines() == ["id,at,v", "-1,infinity,two"], shown.stderr
    for sql, code, message in (
        ("select * from t", ExitCode.NOT_ANSWERABLE, "column at of public.t has a value that Spark's type TIMESTAMP"),
        ("select *\nfrom t", ExitCode.NOT_ANSWERABLE, "`--text t.at` on the command line"),
        ("select 1 / (id + 1) from t", ExitCode.USAGE, "division by zero (line 1, column 8)"),
        ("select id,\ncast(v as int) from t", ExitCode.USAGE, "because it is malformed (line 2, column 1)"),
        ("select id from t having", ExitCode.USAGE, "(line 1, column"),
        ("select nope from t", ExitCode.USAGE, "column `nope` does not exist (line 1, column 8)"),
    ):
        refused = here("query", lake, sql)
        assert refused.returncode == code, (sql, refused.stderr)
        assert message in refused.stderr, refused.stderr
        for internal in ("_pyspark", "org.apache", "Traceback", "spark.sql.", "SQLSTATE"):
            assert internal not in refused.stderr, sql


def _when(lake: str, version: dict[str, Any]) -> None:
    """A position's time and back, without a JVM."""
    begin, xid = version["_begin_lsn"], version["_begin_xid"]
    told = tidemark("when", lake, begin, "--json", program=NO_SPARK)
    assert told.returncode == ExitCode.OK, told.stderr
    plain = json.loads(told.stdout)
    require_documented("when", plain)
    assert (plain["lsn"], plain["commit_lsn"], plain["xid"]) == (begin, begin, xid)
    assert datetime.fromisoformat(plain["commit_time"]) == datetime.fromisoformat(version["_begin_timestamp"])
    back = tidemark("when", lake, plain["latest_time"], program=NO_SPARK)
    assert f"commit   {begin}  at " in back.stdout, back.stderr
    assert f"  by transaction {xid}\n" in back.stdout
    latest = json.loads(tidemark("when", lake, "latest", "--json", program=NO_SPARK).stdout)
    commits = LogReader(Lake.open(Path(lake)).log).commits()["lsn"].tolist()  # ours are nudges, if there are any above
    assert latest["commit_lsn"] == str(Lsn(max(each for each in commits if each <= Lsn.parse(latest["lsn"]).value)))
    assert Lsn.parse(latest["commit_lsn"]) >= Lsn.parse(begin)
    for wrong, code in (
        ("soon", ExitCode.USAGE),
        ("FF/0", ExitCode.NOT_ANSWERABLE),
        ("0/1", ExitCode.NOT_ANSWERABLE),
        ("-9h", ExitCode.NOT_ANSWERABLE),
    ):
        assert here("when", lake, wrong).returncode == code, wrong


def _apply(side: Lakeside) -> subprocess.CompletedProcess[str]:
    source, lake, log = side.options.source.reveal(), str(side.options.lake), str(side.options.log)
    names = ["--name", side.options.names.mirror, "--endpos", str(side.position())]
    return tidemark("apply", source, lake, "--log", log, *names, "--master", "local[1]")


def _status(side: Lakeside) -> None:
    """Without a JVM, and without the module that would start one."""
    shown = tidemark("status", str(side.options.lake), program=NO_SPARK)
    assert shown.returncode == ExitCode.OK, shown.stderr
    assert "public.t | readable |" in shown.stdout
    assert "streaming" in shown.stdout
    plain = json.loads(tidemark("status", str(side.options.lake), "--json", program=NO_SPARK).stdout)
    assert plain["tables"][0]["name"] == "public.t"
    assert plain["tables"][0]["state"] == "readable"
    assert plain["writer"] is None
    assert plain["lag_bytes"] >= 0


def test_a_lake_that_is_not_there_is_said_before_anything_is_started(tmp_path: Path, short: bool) -> None:
    for command in (
        ["status", str(tmp_path)],
        ["query", str(tmp_path), "select 1"],
        ["fold", str(tmp_path)],
        ["expire", str(tmp_path)],
        ["history", str(tmp_path), "t", "1"],
        ["diff", str(tmp_path), "t", "--from", "0/1"],
        ["changes", str(tmp_path), "t"],
        ["tables", str(tmp_path)],
        ["when", str(tmp_path), "latest"],
    ):
        told = here(*command) if short else tidemark(*command)
        assert told.returncode == ExitCode.USAGE
        assert "is not a Tidemark lake" in told.stderr


def test_rows_are_printed_as_table_csv_and_json(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    frame = spark.sql(
        "select * from values (1, 'a,\"b', 1.50, array(1, null), timestamp'2024-01-02 03:04:05', X'00ff', true, "
        "array(1e15D, null)), (22, '', null, null, null, null, null, null) as t(id, v, d, l, at, b, f, r)"
    )
    print_frame(frame, "csv")
    header, first, second = capsys.readouterr().out.splitlines()
    assert header == "id,v,d,l,at,b,f,r"
    assert first == '1,"a,""b",1.50,"{1,NULL}",2024-01-02 03:04:05+00,\\x00ff,t,"{1e+15,NULL}"'
    assert second == '22,"",,,,,,'
    print_frame(frame.select("id", "v", "d", "l"), "jsonl")
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    print_frame(frame.select("id", "v", "d", "l"), "json")
    assert json.loads(capsys.readouterr().out) == rows
    assert rows == [{"id": 1, "v": 'a,"b', "d": 1.5, "l": [1, None]}, {"id": 22, "v": "", "d": None, "l": None}]
    exact = "select timestamp'2024-01-02 03:04:05.000007' as at, array(timestamp_ntz'2024-01-02 03:04:05.1') as l"
    print_frame(spark.sql(exact), "jsonl")
    assert json.loads(capsys.readouterr().out) == {
        "at": "2024-01-02T03:04:05.000007Z",
        "l": ["2024-01-02T03:04:05.100000"],
    }
    print_frame(frame.select("id", "v"), "table")
    assert capsys.readouterr().out.splitlines() == ["id |  v", "---+-----", ' 1 | a,"b', "22 |", "(2 rows)"]
    print_frame(spark.sql("select 9223372036854775807 as lsn, 1 as n"), "csv", lsns=("lsn",))
    assert capsys.readouterr().out.splitlines() == ["lsn,n", "7FFFFFFF/FFFFFFFF,1"]
    print_frame(spark.sql("select 1e6F as f, 0.1D as d, 1e300D as g, array(array(1)) as l, struct(1 as a) as s"), "csv")
    assert capsys.readouterr().out.splitlines()[1] == '1e+06,0.1,1e+300,[[1]],"{""a"":1}"'
    print_frame(frame.where("id = 3").select("id"), "json")
    assert capsys.readouterr().out == "[]\n"


def test_records_are_printed_in_the_same_formats(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [{"name": "id", "type": "integer"}, {"name": "v", "type": "text"}]
    records: list[dict[str, Any]] = [
        {"table": "public.t", "rows": 12, "reason": None, "columns": columns},
        {"table": "public.u", "rows": None, "reason": 'no key, "yet"', "columns": []},
    ]
    names = ["table", "rows", "reason", "columns"]
    printed = {}
    for form in ("table", "csv", "json", "jsonl"):
        print_records(records, names, form)
        printed[form] = capsys.readouterr().out
    assert printed["csv"].splitlines() == [
        "table,rows,reason,columns",
        'public.t,12,,"id integer, v text"',
        'public.u,,"no key, ""yet""",""',
    ]
    assert json.loads(printed["json"]) == [json.loads(line) for line in printed["jsonl"].splitlines()] == records
    assert printed["table"].splitlines()[2].startswith("public.t |   12 |")
    assert printed["table"].splitlines()[-1] == "(2 rows)"
