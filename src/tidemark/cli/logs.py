"""Logging of the command line: records of the `tidemark` loggers on standard error, as text or as JSON lines.

Every package has a logger of its own (`tidemark.sync`, `tidemark.receive`, …). Structured fields of a record are in its
attribute `fields`. As JSON a record is one object: `time`, `level`, `logger`, `message`, and the fields.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
LEVEL_VARIABLE = "TIDEMARK_LOG_LEVEL"
ROOT = "tidemark"


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
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            plain["traceback"] = self.formatException(record.exc_info)
        return json.dumps(plain, ensure_ascii=False)


def configure(level: str, form: str) -> None:
    """Log records of a level and above, in a format. Child processes use the same level."""
    handler = StandardError()
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger(ROOT)
    root.handlers[:] = [handler]
    root.propagate = False
    root.setLevel(level.upper())
    os.environ[LEVEL_VARIABLE] = level


def is_debug() -> bool:
    """Return whether records of all levels are logged."""
    return logging.getLogger(ROOT).isEnabledFor(logging.DEBUG)


def is_json() -> bool:
    """Return whether records are logged as JSON."""
    return any(isinstance(handler.formatter, JsonFormatter) for handler in logging.getLogger(ROOT).handlers)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
