"""Log records: one logger per package, fields that survive the way between processes, and no prose callbacks."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemark
from harness.logs import logged
from tidemark.cli.showing import JsonDisplay, LogDisplay, Message
from tidemark.clock import Lsn
from tidemark.logs import (
    ROOT,
    JsonFormatter,
    StandardError,
    TextFormatter,
    configure,
    fields,
    fields_of,
    record_from_json,
)
from tidemark.pipeline.events import SyncEnded, TableFolded

pytestmark = pytest.mark.quick

PACKAGE = Path(tidemark.__file__).parent
LOGGER = logging.getLogger("tidemark.pipeline")
PROSE = re.compile(r"Callable\[\s*\[\s*str\s*\],\s*(None|Any|object)\s*\]")
GET_LOGGER = re.compile(r'logging\.getLogger\("([^"]+)"\)')


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The logger of the package, which is configured as before when the test ends."""
    root = logging.getLogger(ROOT)
    handlers, level, propagates = list(root.handlers), root.level, root.propagate
    yield root
    root.handlers[:], root.propagate = handlers, propagates
    root.setLevel(level)


@pytest.fixture
def written(root: logging.Logger, capsys: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """What is written to standard output and error, with the configuration of the command line."""
    configure("info", "text")
    assert root.handlers
    return capsys


def test_no_callback_takes_prose() -> None:
    assert PROSE.search("tell: Callable[[str], None] | None = None")
    assert not [str(path) for path in PACKAGE.rglob("*.py") if PROSE.search(path.read_text())]


def test_every_package_has_one_logger() -> None:
    """Modules of the command line log in the name of their command, and only they."""
    for path in PACKAGE.rglob("*.py"):
        package = path.relative_to(PACKAGE).parts[0]
        found = set(GET_LOGGER.findall(path.read_text()))
        assert package == "cli" or found <= {f"{ROOT}.{package}"}, (path, found)


def test_a_record_keeps_its_level_time_fields_and_traceback_on_the_way_to_another_process() -> None:
    try:
        raise ValueError("no")  # noqa: TRY301
    except ValueError:
        record = LOGGER.makeRecord(
            LOGGER.name, logging.WARNING, "", 0, "table %s", ("public.t",), sys.exc_info(), extra=fields(lsn=Lsn(16))
        )
    again = record_from_json(JsonFormatter().format(record))
    assert again is not None
    assert (again.name, again.levelno, again.getMessage()) == (LOGGER.name, logging.WARNING, "table public.t")
    assert again.created == pytest.approx(record.created, abs=0.001)
    assert fields_of(again) == {"lsn": "0/10"}
    assert "ValueError: no" in (again.exc_text or "")
    assert JsonFormatter().format(again) == JsonFormatter().format(record)
    assert TextFormatter().format(again) == TextFormatter().format(record)


@pytest.mark.parametrize("line", ["", "Fatal Python error", "7", "[]", "{}", '{"time": 1, "level": "info"}', '"text"'])
def test_any_other_line_is_no_record(line: str) -> None:
    assert record_from_json(line) is None


def test_the_command_line_replaces_only_its_own_handler(
    root: logging.Logger, written: pytest.CaptureFixture[str]
) -> None:
    with logged() as messages:
        configure("info", "json")
        LOGGER.info("first")
    assert messages == ["first"]
    assert json.loads(written.readouterr().err)["message"] == "first"
    assert sum(isinstance(handler, StandardError) for handler in root.handlers) == 1


def test_a_quiet_display_logs_warnings_and_the_end(written: pytest.CaptureFixture[str]) -> None:
    display = LogDisplay(quiet=True)
    display.emit(TableFolded("public.t", Lsn(16), 3, 100, 0.5))
    LOGGER.info("unimportant")
    LOGGER.warning("important")
    display.emit(SyncEnded(True, Lsn(16), 0))
    lines = [line.split(" ", 1)[1] for line in written.readouterr().err.splitlines()]
    assert lines == ["WARNING tidemark.pipeline: important", "INFO tidemark.sync: complete up to 0/10"]


def test_records_are_messages_among_the_events_as_json(written: pytest.CaptureFixture[str]) -> None:
    received = record_from_json(
        '{"time": "2026-01-01T00:00:00+00:00", "level": "info", "logger": "tidemark.postgres", "message": "waiting"}'
    )
    assert received is not None
    received.processName = "receive"
    with JsonDisplay() as display:
        LOGGER.warning("table %s: gone", "public.t", extra=fields(table="public.t"))
        logging.getLogger("tidemark.postgres").handle(received)
        display.emit(SyncEnded(True, Lsn(16), 0))
    output, errors = written.readouterr()
    first, second, end = map(json.loads, output.splitlines())
    assert {key: first[key] for key in ("event", "text", "part", "warning", "fields")} == {
        "event": "message",
        "text": "table public.t: gone",
        "part": "sync",
        "warning": True,
        "fields": {"table": "public.t"},
    }
    assert (second["part"], second["warning"], end["event"]) == ("receive", False, "ended")
    assert errors == ""
    LOGGER.warning("afterwards")
    assert "afterwards" in written.readouterr().err
    assert Message.of(received).text == "waiting"
