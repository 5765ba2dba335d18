"""The command line without a source and without Spark: help, logs, completion, and the mistakes of users."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from harness.shell import here
from tidemark.cli.differences import lake_lines as compare_lines
from tidemark.cli.main import GROUPS, summary, tidemark
from tidemark.cli.sync import options_of
from tidemark.cli.sync import sync as sync_command
from tidemark.clock import Lsn
from tidemark.errors import ExitCode
from tidemark.lake.lake import Lake
from tidemark.lake.pipeline_state import Copies, State, TableCopyProgress
from tidemark.mirror.compare.comparison import Compared
from tidemark.mirror.compare.narrowing import Difference, Differing, FoundDifferences, Verdict
from tidemark.pipeline.events import (
    SyncEnded,
    SyncProgress,
    TableCopied,
    TableFolded,
    as_json,
)
from tidemark.pipeline.plan import PipelineOptions
from tidemark.postgres.capability import Mode
from tidemark.reads.digests import RowDigest
from tidemark.receive.options import WalPolicy
from tidemark.units import format_duration, format_size, parse_duration, parse_size

pytestmark = pytest.mark.quick

COMMANDS = [name for names in GROUPS.values() for name in names]


def command(name: str) -> click.Command:
    found = tidemark.get_command(click.Context(tidemark), name)
    assert found is not None
    return found


def test_without_a_command_the_help_is_printed() -> None:
    shown = here()
    assert shown.returncode == ExitCode.USAGE
    assert shown.stderr.startswith("Usage: tidemark")
    assert here("--help").stdout.strip() == shown.stderr.strip()


def test_help_lists_every_command_on_one_line_of_80_columns() -> None:
    lines = here("--help").stdout.splitlines()
    for title, names in GROUPS.items():
        assert f"{title}:" in lines
        for name in names:
            (line,) = (line for line in lines if re.match(rf"  {name} ", line))
            assert line.endswith(summary(command(name)))
    assert max(map(len, lines)) <= 80, [line for line in lines if len(line) > 80]
    for code in ExitCode:
        assert any(re.match(rf" +{code.value}  \w", line) for line in lines), code


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_commands_and_options_are_sentences(name: str) -> None:
    first = summary(command(name))
    assert re.fullmatch(r"[A-Z].*\.", first), first
    for param in command(name).params:
        if isinstance(param, click.Option):
            assert param.help, (name, param.name)
            assert re.match(r"[A-Z].*\.(  \[.*\])?$", param.help), param.help
            assert len(param.help) <= 100, param.help


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str) -> None:
    shown = here("completion", shell)
    assert shown.returncode == ExitCode.OK
    assert "_TIDEMARK_COMPLETE" in shown.stdout


def test_completion_completes_flags() -> None:
    program = [sys.executable, "-c", "from tidemark.cli.main import main; main()"]
    environment = {
        "_TIDEMARK_COMPLETE": "bash_complete",
        "COMP_WORDS": "tidemark sync --wal",
        "COMP_CWORD": "2",
        "PYTHONPATH": ":".join(sys.path),
    }
    shown = subprocess.run(program, env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.splitlines() == ["plain,--wal-limit", "plain,--wal-policy"]


SOURCE = "host=/nowhere dbname=shop"


@pytest.mark.parametrize("name", ["status", "catalog", "fold", "resync"])
def test_a_file_or_a_uri_in_place_of_a_lake_is_a_usage_error(name: str) -> None:
    for lake, message in (
        ("/etc/hostname", "/etc/hostname is a file, not a directory"),
        ("s3://bucket/lake", "object storage is not supported"),
    ):
        shown = here(name, lake)
        assert shown.returncode == ExitCode.USAGE
        assert message in shown.stderr
        assert "Traceback" not in shown.stderr


def test_a_bad_lake_or_log_of_sync_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    file, lake = tmp_path / "file", tmp_path / "lake"
    file.touch()
    for arguments in ([file], [file / "lake"], [lake, "--log", file], [tmp_path / "a*b"], ["gs://bucket/lake"]):
        shown = here("sync", SOURCE, *map(str, arguments))
        assert shown.returncode == ExitCode.USAGE, shown.stderr
        assert "Traceback" not in shown.stderr
        assert "Hint: " in shown.stderr
    assert not lake.exists()


def test_a_file_of_the_lake_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "_tidemark.json").mkdir()
    shown = here("status", str(tmp_path))
    assert shown.returncode == ExitCode.LAKE
    assert shown.stderr.startswith(f"tidemark: cannot read {tmp_path}/_tidemark.json: Is a directory\nHint: ")


def test_an_unexpected_error_is_one_line_and_a_traceback_only_at_level_debug(tmp_path: Path) -> None:
    Lake(tmp_path, "mirror", 1, 2, "shop", 180000, tmp_path / "log").create()
    (tmp_path / "_unmirrored.json").write_text("[{}]")
    shown = here("status", str(tmp_path))
    assert shown.returncode == ExitCode.UNEXPECTED
    assert re.match(r"tidemark: unexpected TypeError: .*\nHint: ", shown.stderr)
    assert "Traceback" not in shown.stderr
    debug = here("--log-level", "debug", "status", str(tmp_path))
    assert "Traceback" in debug.stderr
    assert debug.stderr.endswith(shown.stderr)


def test_errors_are_json_lines_if_the_log_is() -> None:
    shown = here("--log-format", "json", "status", "/nowhere")
    plain = json.loads(shown.stderr)
    assert shown.returncode == plain["exit_code"] == ExitCode.USAGE
    assert (plain["level"], plain["logger"]) == ("error", "tidemark")
    assert "/nowhere" in plain["message"]
    assert plain["hint"]


def parsed(*arguments: str) -> PipelineOptions:
    """The options of the pipeline, as the command line has them."""
    params = sync_command.make_context("sync", [SOURCE, "/lake", *arguments]).params
    for name in ("dry_run", "listen", "master", "remote", "conf", "as_json", "quiet"):
        params.pop(name)
    return options_of(**params)


def test_every_option_of_sync_reaches_its_part() -> None:
    options = parsed(
        "--wal-limit", "3GB", "--wal-policy", "drop", "--budget", "5GB", "--accept-altered-publication",
        "--cycle", "7MB", "--cycle-time", "9s", "--copy-parallelism", "11", "--endpos", "0/1F", "--no-fold",
        "--log", "/log", "--mode", "logical", "--name", "shop", "--keep", "90min", "--archive", "/archive",
    )  # fmt: skip
    receive = options.receive
    assert (receive.wal_limit_bytes, receive.wal_policy, receive.budget_bytes) == (3 << 30, WalPolicy.DROP, 5 << 30)
    assert receive.accept_altered_publication
    assert receive.archive == "/archive"
    assert (receive.folder, receive.endpos) == (Path("/log"), Lsn(0x1F))
    assert (options.apply.cycle_bytes, options.apply.cycle_s) == (7 << 20, 9.0)
    assert options.copy_parallelism == 11
    assert not options.folds
    assert options.keep_s == 5400
    assert parsed("--keep", "forever").keep_s is None
    assert options.mode is Mode.LOGICAL


def test_the_defaults_of_sync_are_those_of_its_parts() -> None:
    options = parsed()
    assert options == PipelineOptions(options.source, Path("/lake"))
    assert options.log_folder == Path("/lake/_log")
    for once in ("--once",), ("--endpos", "current"):
        assert parsed(*once).once
        assert parsed(*once).has_end


def test_events_have_a_line_for_people_and_fields_for_programs() -> None:
    copies = Copies(2, 1, 3 << 20, 2 << 20, 1000, 1 << 20, 1.0, (TableCopyProgress("public.t", "copying", 1, 0, 0),))
    fold = TableFolded("public.t", Lsn(16), 3, 100, 0.5)
    progress = SyncProgress(State.COPYING, Lsn(32), Lsn(64), Lsn(64), 32, 0.25, 4.0, copies, fold, 1.5)
    assert str(progress) == (
        "copying: 0/20, lag 32 bytes, 0.2 s, 4 changes/s; "
        "copied 1 of 2 tables, 2 MB of 3 MB, 1,000 rows, 1 MB/s, 1 s left"
    )
    plain = json.loads(json.dumps(as_json(progress)))
    assert (plain["event"], plain["state"], plain["applied_lsn"], plain["lag_bytes"]) == (
        "progress",
        "copying",
        "0/20",
        32,
    )
    assert plain["copies"]["tables"][0]["table"] == "public.t"
    assert plain["last_fold"]["lsn"] == "0/10"
    assert str(fold) == "table public.t: folded 3 changes in 0.5 s, up to 0/10"
    assert str(TableCopied("public.t", Lsn(16), 1, 2.0)) == "table public.t: copied 1 row in 2 s, as of 0/10"
    assert str(SyncEnded(False, Lsn(16), 5 << 20)) == "stopped at 0/10; 5 MB behind"
    assert str(SyncEnded(True, Lsn(16), 0)) == "complete up to 0/10"


def test_sizes_and_durations_are_read_as_postgresql_does_and_rounded_for_people() -> None:
    assert [parse_size(text) for text in ("5", "5kB", "32GB")] == [5, 5120, 32 << 30]
    assert [parse_duration(text) for text in ("200ms", "5s", "2min", 3)] == [0.2, 5.0, 120.0, 3.0]
    sizes = (0, 1, 1023, 1024, 5 << 19, 1 << 25, (1 << 30) - 1, 32 << 30)
    assert [format_size(size) for size in sizes] == [
        "0 bytes", "1 byte", "1023 bytes", "1 kB", "2.5 MB", "32 MB", "1 GB", "32 GB",
    ]  # fmt: skip
    assert [format_duration(seconds) for seconds in (0, 0.84, 42, 200, 7500, 90000)] == [
        "0 s", "0.8 s", "42 s", "3 min 20 s", "2 h 5 min", "1 d 1 h",
    ]  # fmt: skip


@pytest.mark.parametrize("difference", list(Difference))
def test_every_kind_of_difference_is_printed_with_its_rows(difference: Difference) -> None:
    row = Differing(difference, "(7)", ("(7,a)",), ("(7,b)",))
    done = Compared("public.t", Verdict.DIFFERENT, 1.0, RowDigest(), RowDigest(), FoundDifferences((row,), more=True))
    first, shown, source, mirror, more = compare_lines(done, values=True)
    assert first.startswith("different     public.t  ")
    assert shown.split()[-1] == "(7)"
    assert (source.split(), mirror.split()) == (["source", "(7,a)"], ["mirror", "(7,b)"])
    assert "--limit" in more


def test_the_umask_of_a_command_ends_with_it() -> None:
    before = os.umask(0o022)
    try:
        assert here("--umask", "027", "status", "/nowhere").returncode == ExitCode.USAGE
        assert os.umask(0o022) == 0o022
        refused = here("--umask", "700", "status", "/nowhere")
        assert (refused.returncode, "invalid umask: '700'" in refused.stderr) == (ExitCode.USAGE, True)
    finally:
        os.umask(before)
