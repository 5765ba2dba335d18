"""apply, query and status as a shell runs them; and what they print."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from harness.database import Database
from harness.lake import Lakeside, following, lakeside
from harness.postgres import Install, installs
from tidemark.cli.printing import as_csv, as_json, as_table
from tidemark.errors import ExitCode


@pytest.fixture(scope="session", params=list(installs().values())[-1:], ids=lambda each: f"pg{each.major}")
def install(request: pytest.FixtureRequest) -> Install:
    assert isinstance(request.param, Install)
    return request.param


def tidemark(
    *arguments: str, program: str = "from tidemark.cli.main import main; main()"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)


def test_apply_query_and_status_from_a_shell(db: Database, spark: SparkSession, tmp_path: Path) -> None:
    db.run("create table t (id int primary key, v text)")
    with following(lakeside(db, tmp_path, spark, "t")) as side:
        db.run("insert into t values (1, 'one'), (2, null)")
        first = side.position()
        db.run("update t set v = 'two' where id = 2")
        side.mirror.catch_up()
        applied = _apply(side)
        assert applied.returncode == ExitCode.OK, applied.stderr
        assert applied.stdout.startswith("done at ")
        query = tidemark(
            "query", str(side.options.lake), "select * from t order by id", "--at", str(first), "--format", "csv"
        )
        assert query.stdout == "id,v\n1,one\n2,\n", query.stderr
        _status(side)


def _apply(side: Lakeside) -> subprocess.CompletedProcess[str]:
    source, lake, log = side.options.source.reveal(), str(side.options.lake), str(side.options.log)
    names = ["--name", side.options.names.mirror, "--endpos", str(side.position())]
    return tidemark("apply", source, lake, "--log", log, *names, "--master", "local[1]")


def _status(side: Lakeside) -> None:
    """Without a JVM, and without the module that would start one."""
    program = (
        "import sys; from tidemark.cli.main import run; code = run(); "
        "sys.exit(int(code) if 'pyspark' not in sys.modules else 99)"
    )
    shown = tidemark("status", str(side.options.lake), program=program)
    assert shown.returncode == ExitCode.OK, shown.stderr
    assert "public.t  live      readable" in shown.stdout
    assert "streaming" in shown.stdout
    plain = json.loads(tidemark("status", str(side.options.lake), "--json", program=program).stdout)
    assert plain["tables"][0]["name"] == "public.t"
    assert plain["tables"][0]["state"] == "live"
    assert plain["writing"] is None
    assert plain["behind_bytes"] >= 0


def test_a_lake_that_is_not_there_is_said_before_anything_is_started(tmp_path: Path) -> None:
    for command in (["status", str(tmp_path)], ["query", str(tmp_path), "select 1"]):
        told = tidemark(*command)
        assert told.returncode == ExitCode.USAGE
        assert "there is no lake at" in told.stderr


def test_rows_are_printed_as_table_csv_and_json(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    frame = spark.sql(
        "select * from values (1, 'a,\"b', 1.50, array(1, null), timestamp'2024-01-02 03:04:05', X'00ff', true), "
        "(22, '', null, null, null, null, null) as t(id, v, d, l, at, b, f)"
    )
    as_csv(frame)
    header, first, second = capsys.readouterr().out.splitlines()
    assert header == "id,v,d,l,at,b,f"
    assert first == '1,"a,""b",1.50,"[1,null]",2024-01-02 03:04:05+00,\\x00ff,true'
    assert second == '22,"",,,,,'
    as_json(frame.select("id", "v", "d", "l"))
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [{"id": 1, "v": 'a,"b', "d": 1.5, "l": [1, None]}, {"id": 22, "v": "", "d": None, "l": None}]
    as_table(frame.select("id", "v"))
    assert capsys.readouterr().out.splitlines() == ["id |  v", "---+-----", ' 1 | a,"b', "22 |", "(2 rows)"]
