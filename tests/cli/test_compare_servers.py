"""`tidemark compare SOURCE TARGET` and `tidemark doctor SOURCE TARGET`, and mistakes in their arguments."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.database import MIRROR, OWNER, PASSWORD, Database, create_database
from harness.postgres import Server
from tests.documentation.keys import require_documented
from tests.target.pairs import Pair
from tidemark.cli.main import run
from tidemark.cli.options import LakeOrDsnType
from tidemark.errors import ExitCode
from tidemark.postgres.dsn import Dsn

pytestmark = pytest.mark.quick

UNREACHABLE = "host=127.0.0.1 port=1 user=x"


@pytest.fixture
def pair(db: Database, server: Server) -> Iterator[Pair]:
    target = create_database(server)
    pair = Pair(db, target)
    pair.both("create table t (id int primary key, v text)", "insert into t values (1, 'a'), (2, 'b')")
    yield pair
    target.drop()


def compare(pair: Pair, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str]]:
    capsys.readouterr()
    code = run(["compare", pair.source.dsn().reveal(), pair.target.dsn().reveal(), *arguments])
    out = capsys.readouterr().out
    assert PASSWORD not in out
    return code, out.splitlines()


def test_equal_tables_are_lines(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    code, (first, line) = compare(pair, capsys)
    assert code == ExitCode.OK
    assert (pair.source.name in first, pair.target.name in first) == (True, True)
    assert line.startswith("equal         public.t  2 rows  ")


def test_differences_are_printed_with_key_and_columns(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    pair.target.run("update t set v = 'x' where id = 1", "insert into t values (3, 'c')", "create table more (a int)")
    code, lines = compare(pair, capsys, "--values")
    assert code == ExitCode.DIFFERENT
    assert [line.split() for line in lines[1:3]] == [
        ["different", "public.more"],
        ["exists", "only", "at", "the", "target"],
    ]
    assert lines[3].startswith("different     public.t  2 rows  ")
    assert lines[4].strip().startswith("target: 3 rows  ")
    assert lines[5:] == [
        "    different values       (1)  v",
        "        source  (1,a)",
        "        target  (1,x)",
        "    only in the target     (3)",
        "        target  (3,c)",
    ]
    assert compare(pair, capsys, "t", "--limit", "1")[1][-1] == "    … more rows differ (raise --limit)"


def test_what_cannot_be_compared_has_its_own_exit_code(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    pair.source.run(f"revoke all on t from {MIRROR}")
    code, lines = compare(pair, capsys)
    assert code == ExitCode.NOT_ANSWERABLE
    assert lines[1].startswith(f"not compared  public.t: role {MIRROR} may not read public.t")


def test_the_json_is_documented(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    pair.target.run("update t set v = 'x' where id = 1")
    pair.both("create sequence s", f"grant select on sequence s to {MIRROR}")
    pair.target.run("select nextval('s')")
    code, lines = compare(pair, capsys, "--values", "--sequences", "--json")
    assert code == ExitCode.DIFFERENT
    table, sequence = (json.loads(line) for line in lines)
    for plain in (table, sequence):
        require_documented("compare SOURCE TARGET", plain)
    (row,) = table["differing"]
    assert row == {
        "difference": "different", "key": "(1)", "columns": ["v"], "source": ["(1,a)"], "target": ["(1,x)"],
    }  # fmt: skip
    assert (sequence["kind"], sequence["verdict"], len(sequence["definition"])) == ("sequence", "different", 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["SOURCE"], "TARGET must be one too, and it is missing"),
        (["SOURCE", "public.t"], "TARGET must be one too, and 'public.t' is not a connection string"),
        (["SOURCE", "LAKE"], "is not a connection string"),
        (["SOURCE", "SOURCE"], "the source and the target are the same database"),
        (["SOURCE", "TARGET", "none"], "neither the source nor the target has a table that matches 'none'"),
        (["SOURCE", "TARGET", "--source", "SOURCE"], "--source applies to a lake, not to two servers"),
        (["SOURCE", "TARGET", "--master", "local"], "--master applies to a lake, not to two servers"),
        (["LAKE", "SOURCE"], "is a directory, and another argument is a connection string"),
        (["LAKE"], "Missing option '--source'"),
        (["LAKE", "--sequences", "--source", "SOURCE"], "--sequences applies to two servers, not to a lake"),
        (["SOURCE", "host=h port=x"], "invalid connection string"),
    ],
)
def test_mistakes_in_the_arguments(
    pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    meant = {"SOURCE": pair.source.dsn().reveal(), "TARGET": pair.target.dsn().reveal(), "LAKE": str(tmp_path)}
    assert run(["compare", *(meant.get(each, each) for each in arguments)]) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert message in error
    assert PASSWORD not in error


def test_an_unreachable_target(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["compare", pair.source.dsn().reveal(), UNREACHABLE]) == ExitCode.UNREACHABLE
    assert f"cannot connect to the target, {UNREACHABLE}" in capsys.readouterr().err


def test_a_source_in_the_environment_is_for_lakes(
    pair: Pair, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMARK_SOURCE", UNREACHABLE)
    assert compare(pair, capsys)[0] == ExitCode.OK


@pytest.mark.parametrize(
    ("text", "is_dsn"),
    [
        ("postgresql://h/d", True),
        ("host=h dbname=d", True),
        ("service=shop", True),
        (" dbname = d", True),
        ("/data/lake", False),
        ("lake", False),
        ("./year=2024/lake", False),
        ("/data/year=2024", False),
    ],
)
def test_lakes_and_connection_strings_are_told_apart(text: str, is_dsn: bool) -> None:
    assert isinstance(LakeOrDsnType().parse(text), Dsn) is is_dsn


def test_a_directory_that_looks_like_a_connection_string_is_a_lake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "user=x").mkdir()
    assert LakeOrDsnType().parse("user=x") == tmp_path / "user=x"


def doctor(pair: Pair, capsys: pytest.CaptureFixture[str], user: str, *options: str) -> tuple[int, str]:
    capsys.readouterr()
    arguments = [pair.source.dsn().reveal(), pair.target.dsn(user).reveal(), "--name", pair.source.name, *options]
    return run(["doctor", *arguments]), capsys.readouterr().out


def test_doctor_reports_source_and_target(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = doctor(pair, capsys, OWNER)
    assert code == ExitCode.OK
    assert "`tidemark sync` will use mode " in out
    lines = out.splitlines()
    assert any(line.startswith("target ") and pair.target.name in line for line in lines)
    assert lines[-1] == "the source can be cloned into this target"
    code, out = doctor(pair, capsys, OWNER, "--json")
    report: dict[str, Any] = json.loads(out)
    require_documented("doctor", report)
    assert (code, report["target"]["status"]) == (ExitCode.OK, "warn")


def test_doctor_fails_if_the_target_does(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = doctor(pair, capsys, MIRROR)
    assert code == ExitCode.CHECKS_FAILED
    grant = f'grant create on database "{pair.target.name}" to "{MIRROR}";'
    assert grant in out
    assert out.splitlines()[-1].startswith(
        f"the source cannot be cloned into this target: role {MIRROR} cannot create schemas"
    )
    assert PASSWORD not in out
    assert json.loads(doctor(pair, capsys, MIRROR, "--json")[1])["target"]["status"] == "fail"


def test_spark_is_not_imported(pair: Pair) -> None:
    program = (
        "import sys; from tidemark.cli.main import run; code = run(sys.argv[1:]);"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('pyspark', 'py4j'))); sys.exit(int(code))"
    )
    arguments = ["compare", pair.source.dsn().reveal(), pair.target.dsn().reveal()]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert (done.stdout.splitlines()[-1], done.stderr, done.returncode) == ("[]", "", 0)
