"""Logging: every package has a logger of its own (`tidemark.pipeline`, `tidemark.receive`, `tidemark.postgres`).

Structured values of a record, such as a table and an LSN, are in its attribute `fields`. As JSON a record is one object
on one line: `time`, `level`, `logger`, `message`, `traceback` if there is one, and the fields. A child process writes
its records in this form, and its parent reads them back with `record_from_json`. The library itself configures nothing;
the command line calls `configure`.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, ParamSpec, TypeVar

_mirror: ContextVar[str] = ContextVar("mirror", default="")
_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
ROOT = "tidemark"
MIRROR = "mirror"  # the field
_JSON = (str, int, float, list, dict, type(None))


@contextmanager
def about(mirror: str) -> Iterator[None]:
    """Log about one of several mirrors while the context lasts: its name is a field of every record."""
    token = _mirror.set(mirror)
    try:
        yield
    finally:
        _mirror.reset(token)


def current_mirror() -> str:
    """Return the mirror that this thread logs about; an empty text if there is one mirror only."""
    return _mirror.get()


def inherited(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
    """Return the function of a new thread, which logs about the same mirror as this thread."""
    mirror = _mirror.get()

    def run(*args: _Params.args, **keywords: _Params.kwargs) -> _Result:
        _mirror.set(mirror)
        return function(*args, **keywords)

    return run


def initializer() -> Callable[[], None]:
    """Return the initializer of a pool of threads that log about the same mirror as this thread."""
    return inherited(lambda: None)


class StandardError(logging.Handler):
    """Writes to the current `sys.stderr`, which a display on a terminal replaces while it runs."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except BrokenPipeError:
            pass
        except Exception:  # noqa: BLE001 - as logging's own handlers do
            self.handleError(record)


class TextFormatter(logging.Formatter):
    """Text for people: the local time on a terminal; otherwise the time in UTC, the level and the logger."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record; a traceback follows its message."""
        message = super().format(record)
        if mirror := fields_of(record).get(MIRROR):
            message = f"{mirror}: {message}"
        if sys.stderr.isatty():
            warning = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
            return f"{datetime.fromtimestamp(record.created).astimezone():%H:%M:%S} {warning}{message}"
        return f"{_time(record).replace('+00:00', 'Z')} {record.levelname} {record.name}: {message}"


class JsonFormatter(logging.Formatter):
    """JSON for programs: one object on one line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record."""
        plain: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            plain["traceback"] = record.exc_text
        return json.dumps(plain, ensure_ascii=False)


def fields(**values: Any) -> dict[str, Any]:
    """The structured values of a record, as the parameter `extra` of a logger's methods.

    Values that JSON does not have, such as LSNs, become text.
    """
    return {"fields": {name: value if isinstance(value, _JSON) else str(value) for name, value in values.items()}}


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The structured values of a record, which may have none."""
    found: dict[str, Any] = getattr(record, "fields", {})
    return {MIRROR: mirror, **found} if (mirror := _mirror.get()) else found


def record_from_json(line: str) -> logging.LogRecord | None:
    """The record that `JsonFormatter` wrote; None for any other line."""
    try:
        plain = json.loads(line)
        created, level, name, message = (plain.pop(key) for key in ("time", "level", "logger", "message"))
        record = logging.LogRecord(name, logging.getLevelNamesMapping()[level.upper()], "", 0, message, None, None)
        record.created = datetime.fromisoformat(created).timestamp()
        record.msecs = record.created % 1 * 1000
    except (ValueError, TypeError, AttributeError, KeyError):
        return None
    record.exc_text = plain.pop("traceback", None)
    record.fields = plain
    return record


def configure(level: str | int, form: str) -> None:
    """Log records of a level and above on standard error, in a format. Handlers of other kinds stay."""
    handler = StandardError()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger(ROOT)
    root.handlers[:] = [handler, *(other for other in root.handlers if not isinstance(other, StandardError))]
    root.propagate = False
    root.setLevel(level.upper() if isinstance(level, str) else level)


def be_quiet() -> None:
    """Log only warnings and errors, unless the level is debug."""
    root = logging.getLogger(ROOT)
    if root.level == logging.INFO:
        root.setLevel(logging.WARNING)


@contextmanager
def redirected(handler: logging.Handler) -> Iterator[None]:
    """Send records to a handler instead of standard error while the context lasts."""
    root = logging.getLogger(ROOT)
    before = [other for other in root.handlers if isinstance(other, StandardError)]
    root.handlers[:] = [handler, *(other for other in root.handlers if other not in before)]
    try:
        yield
    finally:
        root.handlers[:] = [*before, *(other for other in root.handlers if other is not handler)]


def is_debug() -> bool:
    """Return whether records of all levels are logged."""
    return logging.getLogger(ROOT).isEnabledFor(logging.DEBUG)


def is_json() -> bool:
    """Return whether records are logged as JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger(ROOT).handlers)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
