"""Spark's errors as Tidemark errors: with line and column in the user's SQL, without view names and stack traces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger

from tidemark.errors import InvalidValue, NotAnswerable, TaskFailed, TidemarkError
from tidemark.mirror.sql import Statement
from tidemark.mirror.sql.tokens import placed
from tidemark.spark import what_failed
from tidemark.spark.session import RAISED

DIALECT = "The SQL dialect is Spark's: docs/reference/spark-dialect.md lists the differences from PostgreSQL."
_VIEW = re.compile(r"`?_pyspark(?:_connect_temp_view)?_[0-9a-f]{32}`?\.?")
_VIEW_SIZES = tuple(len(prefix) + 32 for prefix in ("_pyspark_", "_pyspark_connect_temp_view_"))
_SPARKS = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] (.*?)(?:\s*SQLSTATE: \w{5}|$)", re.DOTALL)
_PLACES = (re.compile(r"line (\d+),? pos (\d+)"), re.compile(r"== SQL \(line (\d+), position (\d+)\) =="))
_ADVICE = re.compile(r"[^.]*spark\.sql\.[^ ]*[^.]*\.")  # it names options that would change results
_NOT_THE_QUERYS = ("INTERNAL_ERROR", "FAILED_READ_FILE", "PYTHON", "CANNOT_LOAD", "UNSUPPORTED_CALL")


@contextmanager
def quiet() -> Iterator[None]:
    """Disable PySpark's logging of errors inside the context, because they are also raised."""
    loggers = [PySparkLogger.getLogger(name) for name in RAISED]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


@contextmanager
def explaining(statement: Statement | None) -> Iterator[None]:
    """Raise Spark's errors as Tidemark errors, with their position in the statement if one is given."""
    with quiet():
        try:
            yield
        except (PySparkException, Py4JError) as error:
            raise explained(error, statement) from None


@dataclass(frozen=True, slots=True)
class _Failure:
    """An error as Spark reports it: its condition, its message, and its position in the text that Spark parsed."""

    condition: str
    message: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    start: int | None = None
    place: tuple[int, int] | None = None


def explained(error: Exception, statement: Statement | None = None) -> TidemarkError:
    """Return a Spark error as a Tidemark error.

    An error in the query becomes InvalidValue; an error that a read raises with `raise_error` and a hint becomes
    NotAnswerable; any other failure becomes TaskFailed.
    """
    failure = _failure(error)
    if failure.condition == "USER_RAISED_EXCEPTION":
        message, _, hint = failure.message.partition("\nHint: ")
        return NotAnswerable(message, hint) if hint else InvalidValue(message, "The query calls raise_error().")
    if not failure.condition or failure.condition.startswith(_NOT_THE_QUERYS):
        return TaskFailed(
            f"the query failed: {what_failed(error)}", "Retry the command; `tidemark --log-level debug` logs more."
        )
    message, hint = _worded(failure)
    at = _offset(failure, statement) if statement is not None else None
    return InvalidValue(message if at is None or statement is None else placed(statement.typed, at, message), hint)


def _failure(error: Exception) -> _Failure:
    text = getattr(error, "_desc", None) or str(error)
    found = next((match for pattern in _PLACES if (match := pattern.search(text))), None)
    # the first form of `_PLACES` counts positions from 0, the second from 1
    place = (int(found[1]), int(found[2]) - (found.re is _PLACES[1])) if found is not None else None
    if isinstance(error, PySparkException) and (condition := error.getCondition()):
        parameters = {name: str(value) for name, value in (error.getMessageParameters() or {}).items()}
        start = next((at for context in error.getQueryContext() if (at := _start_of(context)) is not None), None)
        whole = parameters.get("errorMessage") or _text_of(error.getMessage())
        return _Failure(condition, whole, parameters, start, place)
    match = _SPARKS.search(text)  # an exception of the JVM that PySpark does not convert
    return _Failure(match[1], match[2], {}, None, place) if match is not None else _Failure("", text)


def _text_of(message: str) -> str:
    match = _SPARKS.match(message)
    return match[2] if match is not None else message


def _start_of(context: Any) -> int | None:
    try:
        return int(context.startIndex())
    except Exception:  # noqa: BLE001 - the context of a DataFrame has no position in a text
        return None


def _worded(failure: _Failure) -> tuple[str, str]:
    """Return the message and the hint: by default the first sentence of Spark's text, and the others."""
    kind, parameters = failure.condition.partition(".")[0], failure.parameters
    if kind in ("UNRESOLVED_COLUMN", "UNRESOLVED_FIELD"):
        name = _VIEW.sub("", parameters.get("objectName", parameters.get("fieldName", "")))
        proposal = _VIEW.sub("", parameters.get("proposal", "")).replace(", ", " or ")
        return f"column {name} does not exist", f"Did you mean {proposal}?" if proposal else DIALECT
    if kind == "UNRESOLVED_ROUTINE":
        return f"function {parameters.get('routineName', '')} does not exist in Spark", DIALECT
    text = _VIEW.sub("", _ADVICE.sub("", " ".join(failure.message.split()))).strip()
    first, *others = re.split(r"(?<=[^.]{3})\.\s+(?=[A-Z])", text.rstrip(".").strip())
    message = first[:1].lower() + first[1:] if re.match(r"[A-Z][a-z ]", first) else first
    return message, ". ".join(others) + "." if others else DIALECT


def _offset(failure: _Failure, statement: Statement) -> int | None:
    """Return the offset of the error in the user's text, or None if Spark does not report a position."""
    for size in _VIEW_SIZES:
        start = failure.start if failure.start is not None else _of_place(failure.place, statement, size)
        origin = statement.origin(start, size) if start is not None else None
        if origin is not None:
            return origin
    return None


def _of_place(place: tuple[int, int] | None, statement: Statement, view_size: int) -> int | None:
    """Return the offset in Spark's text of a line and a position: all line breaks are from the user's text."""
    if place is None:
        return None
    line, position = place
    breaks = [at for at, char in enumerate(statement.typed) if char == "\n"]
    if line > len(breaks) + 1:
        return None
    begin = 0 if line == 1 else breaks[line - 2] + 1
    return statement.rendered(begin, view_size) + position
