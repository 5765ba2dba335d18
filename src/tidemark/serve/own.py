"""The messages of our own statements in a client's session, and the readers of what the source returns. Pure.

Own statements use the extended protocol and names of their own, because a simple query, and the unnamed statement,
would end the client's unnamed statement and portal.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidemark.errors import UnexpectedSourceError
from tidemark.serve import messages
from tidemark.serve.messages import PORTAL, STATEMENT, BindMessage, FieldDescription
from tidemark.serve.routing import OwnStatement, Rows
from tidemark.serve.statements import Candidate
from tidemark.serve.wire import HEADER_BYTES, SourceKind
from tidemark.split.facts import REPLAYED

OWN, ORIGINAL, ANSWER = b"_tidemark_own", b"_tidemark_original", b"_tidemark_answer"
OWN_FRAMES = 5  # the responses to an own statement without rows: closed twice, parsed, bound, complete
RESULT_LIMIT = 64 << 20
TEXT_TYPE = 25

BEGIN = OwnStatement(b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
BEGIN_ON_STANDBY = OwnStatement(b"BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY")  # STAY comes before the snapshot
COMMIT = OwnStatement(b"COMMIT")
ROLLBACK = OwnStatement(b"ROLLBACK")
SAVEPOINT = OwnStatement(b"SAVEPOINT _tidemark")
ROLLBACK_TO = OwnStatement(b"ROLLBACK TO SAVEPOINT _tidemark")
RELEASE = OwnStatement(b"RELEASE SAVEPOINT _tidemark")
FAIL = OwnStatement(
    b"ROLLBACK TO SAVEPOINT _tidemark_refused_the_statement"
)  # it never exists: ends the client's block
STAY = OwnStatement(
    b"SELECT pg_catalog.set_config('idle_in_transaction_session_timeout', '0', true), pg_catalog.set_config("
    b"'" + REPLAYED.encode() + b"', CASE WHEN pg_catalog.pg_is_in_recovery() "
    b"THEN pg_catalog.pg_last_wal_replay_lsn()::pg_catalog.text END, true)"
)
_TEXT_OF = b"SELECT statement FROM pg_catalog.pg_prepared_statements WHERE name OPERATOR(pg_catalog.=) $1"


def text_of(name: bytes) -> OwnStatement:
    """The statement that returns the text of a prepared statement, which SQL can replace without the protocol."""
    return OwnStatement(_TEXT_OF, (name,), (TEXT_TYPE,))


def run(*statements: OwnStatement) -> bytes:
    """Build the messages that run statements; a Sync must follow."""
    built = list[bytes]()
    for each in statements:
        bound = BindMessage(OWN, OWN, each.formats, each.parameters, ())
        built += [
            messages.close(STATEMENT, OWN), messages.close(PORTAL, OWN),  # after an error, both can still exist
            messages.parse(OWN, each.text, each.types), messages.bind(bound), messages.execute(OWN),
        ]  # fmt: skip
    return b"".join(built)


def clean() -> bytes:
    """Build the messages that remove every statement and portal of the server, whether it exists or not."""
    portals = (messages.close(PORTAL, name) for name in (OWN, ANSWER))
    return b"".join([*portals, *(messages.close(STATEMENT, name) for name in (OWN, ORIGINAL, ANSWER))])


def describe(candidate: Candidate) -> bytes:
    """Build the messages that describe the client's statement; that of a simple query is parsed for it."""
    if not candidate.is_simple:
        return messages.describe(STATEMENT, candidate.bind.statement)
    parsed = messages.parse(ORIGINAL, candidate.statement.source_text)
    return messages.close(STATEMENT, ORIGINAL) + parsed + messages.describe(STATEMENT, ORIGINAL)


@dataclass
class Results:
    """What own statements returned, up to the first error."""

    results: list[Rows] = field(default_factory=list)
    parameter_types: tuple[int, ...] = ()
    fields: tuple[FieldDescription, ...] | None = None
    error: bytes = b""
    _rows: Rows = field(default_factory=list)
    _bytes: int = 0

    def take(self, kind: int, frame: bytes) -> bytes:
        """Read one message; nothing of it goes to the client."""
        body = frame[HEADER_BYTES:]
        if kind == SourceKind.DATA_ROW:
            self._bytes += len(frame)
            if self._bytes > RESULT_LIMIT:
                raise UnexpectedSourceError("a statement of the server returned more than 64 MB")
            self._rows.append(messages.read_data_row(body))
        elif kind == SourceKind.COMPLETE:
            self.results.append(self._rows)
            self._rows = []
        elif kind == SourceKind.PARAMETER_DESCRIPTION:
            self.parameter_types = messages.read_parameter_description(body)
        elif kind == SourceKind.ROW_DESCRIPTION:
            self.fields = messages.read_row_description(body)
        elif kind == SourceKind.ERROR:
            self.error = body
        return b""

    def require(self) -> None:
        """Raise the error of the source, if there was one."""
        if self.error:
            report = messages.read_report(self.error)
            raise UnexpectedSourceError(report.get("M", "an error of the source"), sqlstate=report.get("C"))


class Answering:
    """Passes the rows of an answer on to the client, with the original's RowDescription; `failed` before the first."""

    def __init__(self, candidate: Candidate, fields: tuple[FieldDescription, ...], swallowed: int, notice: str) -> None:
        self._candidate, self._fields, self._swallowed = candidate, fields, swallowed
        self._notice = messages.notice(notice) if notice else b""
        self._held = b""
        self._last = b""
        self.has_started = self.has_failed = self.is_complete = False
        self.error = b""

    def take(self, kind: int, frame: bytes) -> bytes:
        """Return what goes to the client for one message."""
        if kind == SourceKind.ERROR:
            return self._take_error(frame)
        if self.has_failed or self.is_complete:
            return b""
        if kind == SourceKind.NOTICE:
            return self._passed(frame)
        if self._swallowed:
            self._swallowed -= 1
            return b""
        if kind == SourceKind.ROW_DESCRIPTION:
            self._describe(messages.read_row_description(frame[HEADER_BYTES:]))
            return b""
        if kind == SourceKind.DATA_ROW:
            return self._started() + frame
        if kind in (SourceKind.COMPLETE, SourceKind.SUSPENDED, SourceKind.EMPTY_QUERY):
            self.is_complete, self._last = True, frame  # kept until the block has ended without an error
            return self._started()
        if kind != SourceKind.BIND_COMPLETE:
            self.has_failed = True
        return b""

    def end(self) -> bytes:
        """Return the end of the answer, after the last message of the source."""
        if not (self.has_started or self.is_complete):
            self.has_failed = True
        return self._last

    def _take_error(self, frame: bytes) -> bytes:
        self._last = b""
        self.error = frame
        if self.has_started:
            return frame
        self.has_failed = True
        return b""

    def _passed(self, frame: bytes) -> bytes:
        if self.has_started:
            return frame
        self._held += frame
        return b""

    def _describe(self, found: tuple[FieldDescription, ...]) -> None:
        self.has_failed = [each.type for each in found] != [each.type for each in self._fields]

    def _started(self) -> bytes:
        if self.has_started:
            return b""
        self.has_started = True
        candidate = self._candidate
        bound = b"" if candidate.is_simple else messages.BIND_COMPLETE
        fields = [each.in_format(candidate.bind.format_of(at)) for at, each in enumerate(self._fields)]
        is_described = candidate.is_simple or candidate.is_described
        return self._notice + bound + (messages.row_description(fields) if is_described else b"") + self._held
