"""pg_dump and pg_restore are found in the right version, and get passwords in no command line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from harness.database import PASSWORD
from harness.postgres import installs
from tests.target.schema_pairs import NEWEST, Pair, pair_fixture
from tidemark.errors import DumpFailed, InvalidValue, ProgramMissing, UnsupportedArchive
from tidemark.postgres.dsn import Dsn
from tidemark.target import programs as module
from tidemark.target.archive import dump_schema, open_archive
from tidemark.target.programs import connection_of, find_programs

pytestmark = pytest.mark.quick

pair = pair_fixture((15, NEWEST))


def folder_with(path: Path, version: str) -> Path:
    """A directory with programs that print this version."""
    path.mkdir(parents=True)
    for name in ("pg_dump", "pg_restore"):
        (path / name).write_text(f"#!/bin/sh\necho '{name} (PostgreSQL) {version}'\n")
        (path / name).chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("source", "target", "chosen"),
    [
        (14, 14, "15.18 (Debian 15.18-1)"),
        (15, 16, "16.14"),
        (16, 18, "18beta1"),
        (18, 16, "18beta1"),
        (15, 17, "16.14"),
    ],
)
def test_the_version_nearest_to_the_target_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: int, target: int, chosen: str
) -> None:
    versions = ("15.18 (Debian 15.18-1)", "16.14", "18beta1")
    folders = [folder_with(tmp_path / str(number), version) for number, version in enumerate(versions)]
    monkeypatch.setattr(module, "_USUAL", ())
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))
    found = find_programs(source * 10000 + 3, target * 10000)
    assert (found.version, found.pg_dump.parent) == (chosen.split()[0], folders[versions.index(chosen)])


def test_programs_that_are_too_old_or_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = folder_with(tmp_path / "old", "14.2")
    monkeypatch.setattr(module, "_USUAL", ())
    monkeypatch.setenv("PATH", str(old))
    with pytest.raises(ProgramMissing) as caught:
        find_programs(180004, 180004)
    assert f"found: 14.2 in {old}; searched: {old}" in str(caught.value)
    assert "postgresql-client-18" in caught.value.hint
    with pytest.raises(ProgramMissing, match="found: none; searched: /nowhere"):
        find_programs(180004, 180004, Path("/nowhere"))
    (old / "pg_restore").unlink()
    with pytest.raises(ProgramMissing, match="found: none"):
        find_programs(140000, 140000)


def test_programs_that_cannot_dump_versions_of_columns_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = folder_with(tmp_path / "old", "18.4"), folder_with(tmp_path / "new", "16.16")
    monkeypatch.setattr(module, "_USUAL", ())
    monkeypatch.setenv("PATH", f"{old}:{new}")
    with pytest.raises(ProgramMissing, match=f"pg_attver.*18.4 in {old}, 16.16 in {new}") as caught:
        find_programs(150020, 180004, column_versions=True)
    assert "--pg-bin" in caught.value.hint
    with (new / "pg_dump").open("a") as script:
        script.write("# pg_attver\n")
    assert find_programs(150020, 180004).version == "18.4"
    assert find_programs(150020, 180004, column_versions=True).version == "16.16"


def test_only_the_given_directory_is_searched(tmp_path: Path) -> None:
    old = folder_with(tmp_path / "old", "14.2")
    with pytest.raises(ProgramMissing, match=f"searched: {old}\n"):
        find_programs(NEWEST * 10000, NEWEST * 10000, old)
    real = installs()[NEWEST]
    assert find_programs(160000, 180000, real.home / "bin").version == real.version


def test_the_wrapper_of_debian_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = tmp_path / "pg_wrapper"
    wrapper.write_text("#!/bin/sh\necho 'pg_dump (PostgreSQL) 18.1'\n")
    wrapper.chmod(0o755)
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("pg_dump", "pg_restore"):
        (folder / name).symlink_to(wrapper)
    with pytest.raises(ProgramMissing):
        find_programs(150000, 150000, folder)


def test_a_password_is_in_the_environment_and_other_options_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    dsn = Dsn("postgresql://u:p%27%20w@h:5433/d%20b?sslmode=require&application_name=x&options=-c%20a%3Db&service=s")
    conninfo, environment = connection_of(dsn, "tidemark test")
    assert Dsn(conninfo).has("sslmode")
    for text in ("user=u", "host=h", "port=5433", "dbname='d b'", "sslmode=require", "options='-c a=b'", "service=s"):
        assert text in conninfo
    assert ("p' w" in conninfo, "password" in conninfo) == (False, False)
    assert environment["PGPASSWORD"] == "p' w"
    assert "PGCLIENTENCODING" not in environment
    with pytest.raises(InvalidValue, match="sslpassword"):
        connection_of(Dsn("host=h sslpassword=secret"), "x")


def test_a_password_is_not_in_the_list_of_processes(pair: Pair, tmp_path: Path) -> None:
    """pg_dump waits for a lock, so that its command line can be read while it runs."""
    conninfo, _ = connection_of(pair.from_dsn, "x")
    assert PASSWORD not in conninfo
    pair.source.run("create table t (id int)")
    script = tmp_path / "bin"
    script.mkdir()
    for name in ("pg_dump", "pg_restore"):
        (script / name).write_text(
            f'#!/bin/sh\necho "$@" >> {tmp_path}/arguments\nexec {pair.programs.pg_dump.parent}/{name} "$@"\n'
        )
        (script / name).chmod(0o755)
    wrapped = find_programs(0, 0, script)
    dump_schema(wrapped, pair.from_dsn, None, tmp_path / "archive")
    assert PASSWORD not in (tmp_path / "arguments").read_text()


def test_an_older_pg_dump_is_refused_by_itself_too(tmp_path: Path, pair: Pair) -> None:
    older = min(installs())
    if older == pair.source.server.install.major:
        pytest.skip("the source is the oldest version")
    programs = find_programs(0, 0, installs()[older].home / "bin")
    with pytest.raises(DumpFailed, match="server version mismatch"):
        dump_schema(programs, pair.from_dsn, None, tmp_path)
    with pytest.raises(UnsupportedArchive, match="has no archive"):
        open_archive(tmp_path)


def test_a_snapshot_that_is_gone_stops_the_dump(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="snapshot") as caught:
        dump_schema(pair.programs, pair.from_dsn, "00000003-0000001B-1", tmp_path)
    assert type(caught.value).__name__ == "ObjectMissing"


def test_the_directory_of_an_archive_is_private(pair: Pair, tmp_path: Path) -> None:
    pair.dump(tmp_path / "archive")
    assert (tmp_path / "archive").stat().st_mode & 0o777 == 0o700
    assert subprocess.run(["ls", tmp_path / "archive"], capture_output=True, text=True, check=True).stdout.split() == [
        "schema.dump",
        "schema.json",
    ]
