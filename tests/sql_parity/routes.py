"""Ways to have a statement answered, and the answers: names, types, modifiers and the text of every value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg
from psycopg import pq

Row = tuple[bytes | None, ...]
SHOWN = 4


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a result as its description has it."""

    name: str
    type: int
    modifier: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A result in text format, or an error. `by_mirror` is whether the mirror computed it, `reason` why it did not.

    One that is `passed` was not executed: the route leaves the statement to the source.
    """

    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    error: str = ""
    by_mirror: bool = False
    reason: str = ""
    passed: bool = False

    def __str__(self) -> str:
        if self.error:
            return f"error {self.error}"
        described = ", ".join(f"{each.name} {each.type}/{each.modifier}" for each in self.columns)
        rows = "; ".join(str(tuple(c if c is None else c.decode() for c in row)) for row in self.rows[:SHOWN])
        return f"({described}) {len(self.rows)} rows: {rows}"[:1500]


class Route(Protocol):
    """A session in which statements are answered, after the settings that the statement asks for."""

    def run(self, statement: str, settings: Sequence[str] = ()) -> Answer:
        """Answer one statement; an error of PostgreSQL is an answer too."""
        ...


def answer_of(result: pq.abc.PGresult) -> Answer:
    """The answer that a result of libpq is."""
    columns = tuple(
        Column((result.fname(at) or b"").decode(), result.ftype(at), result.fmod(at)) for at in range(result.nfields)
    )
    rows = tuple(tuple(result.get_value(row, at) for at in range(result.nfields)) for row in range(result.ntuples))
    return Answer(columns, rows)


def error_of(error: psycopg.Error) -> Answer:
    """The answer that an error is: its SQLSTATE and its message."""
    return Answer(error=f"{error.sqlstate}: {error.diag.message_primary}")


class SessionRoute:
    """A session as a client has it, by the simple protocol: of the source, or of `tidemark serve`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._settings: tuple[str, ...] = ()

    def prepare(self, settings: Sequence[str]) -> None:
        """Give the session these settings and no others of an earlier statement."""
        if tuple(settings) == self._settings:
            return
        if self._settings:
            self.connection.execute("reset all")
        for setting in settings:
            self.connection.execute(setting.encode())
        self._settings = tuple(settings)

    def run(self, statement: str, settings: Sequence[str] = ()) -> Answer:
        """Execute the statement as one simple query."""
        self.prepare(settings)
        try:
            result = self.connection.execute(statement.encode()).pgresult
        except psycopg.Error as error:
            return error_of(error)
        assert result is not None
        return answer_of(result)


class ServerRoute(SessionRoute):
    """A session of `tidemark serve`, in which every statement that can be proven goes to the mirror."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection)
        connection.execute("set tidemark.cost = 0")

    def prepare(self, settings: Sequence[str]) -> None:
        """The same, and the cost again, which `reset all` removes."""
        before = self._settings
        super().prepare(settings)
        if before != self._settings:
            self.connection.execute("set tidemark.cost = 0")

    def run(self, statement: str, settings: Sequence[str] = ()) -> Answer:
        """Execute the statement, and read who answered it."""
        answer = super().run(statement, settings)
        (last,) = self.connection.execute("show tidemark.last").fetchone() or ("",)
        route, _, reason = str(last).partition(";")[0].partition(": ")
        return Answer(answer.columns, answer.rows, answer.error, route == "mirror", reason)
