"""The errors that Tidemark raises, as one tree, and for each the retry policy and the exit code, as one table.

    TidemarkError
    ├── Stopped                   a signal or the end of the parent process stopped the operation before it started
    ├── InvalidValue              an argument is not valid: an LSN, a snapshot, a name, a path, an option
    ├── SourceError               an error of the PostgreSQL server or its client; has the SQLSTATE, if there is one
    │   ├── SourceUnreachable     the server does not accept connections
    │   ├── SourceBusy            the server is starting up, shutting down or out of connections
    │   ├── ConnectionLost        an established connection was closed
    │   ├── AuthenticationRefused the server rejected the user name or the password
    │   ├── NotPermitted          the role lacks a privilege
    │   ├── TimedOut              a lock, a statement or an idle transaction exceeded its timeout
    │   ├── Conflict              PostgreSQL aborted the transaction: deadlock, serialization or recovery conflict
    │   ├── ObjectMissing         a database, schema, table, publication, slot or snapshot does not exist
    │   ├── ObjectExists          an object of that name already exists
    │   ├── ObjectInUse           another session uses the object, such as a slot
    │   ├── SettingsNotPinned     the session lacks a setting that an exact text form of values depends on
    │   ├── UnsupportedServer     the server's version, role or pooler does not support the operation
    │   ├── NotTheSameSource      the server or database is not the one that this mirror belongs to
    │   ├── SourceForked          the server's timeline left the mirror's history before the mirror's last commit
    │   ├── SlotBlocked           creating a slot waits for running transactions; lists them
    │   ├── NotOurs               an object without Tidemark's name prefix; Tidemark never changes or drops such objects
    │   ├── PublicationDiffers    a publication of the mirror does not publish what the mirror requires
    │   ├── SlotMissing           the mirror's slot does not exist, so changes may be missing
    │   ├── SlotRecreated         the slot of that name is not the slot that the mirror created
    │   ├── SlotInvalidated       the server removed WAL or rows that the slot requires
    │   ├── SlotAhead             the slot was advanced beyond the flushed LSN of the log
    │   ├── DecodingFailed        the server cannot decode the WAL that the slot needs
    │   ├── NotAllBinary          the stream must switch from binary to text because of a column's type
    │   ├── TableChanged          a table was changed in a way that its copy cannot follow
    │   ├── UntranslatableText    a text that the server cannot convert to UTF-8
    │   ├── WalLimitReached       the slot retains more WAL than the limit allows
    │   └── UnexpectedSourceError any other SQLSTATE
    ├── DecodeError               bytes that do not follow the protocol; has their offset
    │   ├── MalformedMessage      a message, frame or header is too short, too long, unknown or out of order
    │   ├── MalformedValue        a value is not valid for its type
    │   ├── UnknownRelation       a change of a table for which no Relation message was received
    │   └── UnsupportedMessage    a message of a feature that is not used, such as two-phase decoding
    ├── LogError                  the log on the local disk
    │   ├── LogDamaged            a file of the log is damaged or missing; names it
    │   ├── LogDiskFull           no space left for the log; no data is lost
    │   ├── LogDiskFailed         an operation on a file of the log failed
    │   ├── LogInUse              another process writes the log
    │   ├── LogTrimmed            the requested data was removed from the log after it was applied
    │   └── LogBehind             the requested LSN has not been received yet
    ├── ReceiveFailed             the receiver ended without reporting an error, or is not running
    ├── TargetError               another PostgreSQL as the target
    │   ├── ProgramMissing        pg_dump and pg_restore were not found, or are older than the source
    │   ├── UnsupportedArchive    an archive of pg_dump has an entry that Tidemark does not handle
    │   ├── DumpFailed            pg_dump failed
    │   ├── RestoreFailed         pg_restore failed, or an object that it restored does not exist
    │   ├── TargetNotReady        the target lacks a role, an extension or a privilege, or is not empty
    │   ├── TargetTableUnfit      a table of the target is missing, not empty, or differs from that of the source
    │   ├── RowRejected           the target rejected a row, or did not store it: a constraint, a trigger, a value
    │   ├── TargetDiffers         the target lacks a row or value that it must have, or has one that it must not have
    │   ├── TargetInUse           another process writes the target
    │   ├── TargetBehind          the target does not have the changes up to an LSN yet
    │   └── SourceAltered         a table was altered at the source, and the target does not fit it
    ├── LakeError                 the Delta tables
    │   ├── LakeMissing           the directory is not a lake
    │   ├── LakeDamaged           a file of the lake is damaged or missing
    │   ├── LakeInUse             another process writes the lake; names it
    │   ├── LakeDiskFull          no space left for the lake; no data is lost
    │   ├── LakeDiskFailed        an operation on a file of the lake failed
    │   ├── LakeAccessDenied      the process may not read or write a file of the lake
    │   ├── CommitUnknown         the outcome of a commit to a Delta table could not be determined
    │   └── NotAnswerable         a read outside of what the mirror can answer exactly
    │       ├── Unproven          a statement in PostgreSQL's dialect that is not proven to be answered exactly
    │       └── EngineRefused     an engine did not compute a part of a statement, or cannot read a table exactly
    └── SparkError
        ├── TaskFailed            a Spark task or its Python worker failed
        ├── FolderNotShared       an executor does not have the driver's directory of the lake or the log
        ├── JavaMissing           Java 17 or later was not found
        └── SparkSettingsDiffer   the active session has options that can change a result

The message names the failed operation, its object and the value; `hint` is a sentence that names a command or SQL
statement that resolves it. Errors pickle with all fields, because Spark sends them from executors to the driver.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Any, TypeAlias


class TidemarkError(Exception):
    """The root of all errors. `str()` is the message and, on a second line, the hint."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message


def in_short(error: Exception) -> TidemarkError:
    """Return an error of another library as a Tidemark error with a one-line message."""
    lines = str(error).splitlines() or [""]
    return TidemarkError(f"{type(error).__name__}: {lines[0]}")


RESYNC_ALL = (
    "To start the mirror over, run `tidemark resync LAKE --all` and then `tidemark sync SOURCE LAKE`; "
    "the history that was applied before stays readable."
)


class Stopped(TidemarkError):
    """A signal or the end of the parent process stopped the operation before it started."""


class InvalidValue(TidemarkError, ValueError):
    """An argument is not valid."""


class SourceError(TidemarkError):
    """An error of the PostgreSQL server or of the connection to it."""

    def __init__(self, message: str, hint: str = "", sqlstate: str | None = None) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, sqlstate)
        self.sqlstate = sqlstate


class SourceUnreachable(SourceError):
    """The server does not accept connections."""


class SourceBusy(SourceError):
    """The server is starting up, shutting down or out of connections."""


class ConnectionLost(SourceError):
    """An established connection was closed."""


class AuthenticationRefused(SourceError):
    """The server rejected the user name or the password."""


class NotPermitted(SourceError):
    """The role lacks a privilege."""


class TimedOut(SourceError):
    """A lock, a statement or an idle transaction exceeded its timeout."""


class Conflict(SourceError):
    """PostgreSQL aborted the transaction because of a deadlock, serialization or recovery conflict."""


class ObjectMissing(SourceError):
    """A database, schema, table, publication, slot or snapshot does not exist."""


class ObjectExists(SourceError):
    """An object of that name already exists."""


class ObjectInUse(SourceError):
    """Another session uses the object."""


class SettingsNotPinned(SourceError):
    """The session lacks a setting that the exact text form of values depends on."""


class UnsupportedServer(SourceError):
    """The server does not support the operation."""


class NotTheSameSource(SourceError):
    """The server or database is not the one that the mirror belongs to."""


class SourceForked(SourceError):
    """The mirror has commits that are not in the history of this server."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction that another waits for. `pid` is None if it is prepared, `since` if the role may not read it."""

    pid: int | None
    gid: str | None
    user: str | None
    since: datetime | None
    application: str | None = None

    def __str__(self) -> str:
        transaction = f"pid {self.pid}" if self.pid is not None else f"prepared transaction {self.gid!r}"
        user = f" of {self.user}" if self.user else ""
        application = f" ({self.application})" if self.application else ""
        since = f", since {self.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if self.since is not None else ""
        return f"{transaction}{user}{application}{since}"


class SlotBlocked(SourceError):
    """Creating a slot waits for transactions that were running when it started."""

    def __init__(self, message: str, hint: str = "", blockers: tuple[Blocker, ...] = ()) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, blockers)
        self.blockers = blockers


class NotOurs(SourceError):
    """An object without Tidemark's name prefix."""


class PublicationDiffers(SourceError):
    """A publication of the mirror does not publish what the mirror requires."""


class SlotMissing(SourceError):
    """The mirror's slot does not exist."""


class SlotRecreated(SourceError):
    """The slot of that name is not the slot that the mirror created."""


class SlotInvalidated(SourceError):
    """The server removed WAL or rows that the slot requires."""


class SlotAhead(SourceError):
    """The slot was advanced beyond the flushed LSN of the log."""


class DecodingFailed(SourceError):
    """The server cannot decode the WAL that the slot needs."""


class NotAllBinary(SourceError):
    """The stream must switch from binary to text because of a column type."""


class TableChanged(SourceError):
    """A table was truncated, rewritten, altered or dropped while it was copied."""


class UntranslatableText(SourceError):
    """A text has bytes that are not valid UTF-8 or not valid in the encoding of the database."""


class WalLimitReached(SourceError):
    """The slot retains more WAL than the limit allows."""


class UnexpectedSourceError(SourceError):
    """The server reported an SQLSTATE that Tidemark does not handle."""


class DecodeError(TidemarkError):
    """Bytes that do not follow the protocol. `offset` is their position in the buffer."""

    def __init__(self, message: str, hint: str = "", offset: int = 0) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, offset)
        self.offset = offset


class MalformedMessage(DecodeError):
    """A message, frame or header is too short, too long, unknown or out of order."""


class MalformedValue(DecodeError):
    """A value is not valid for its type."""


class UnknownRelation(DecodeError):
    """A change of a table for which no Relation message was received."""


class UnsupportedMessage(DecodeError):
    """A message of a feature that Tidemark does not use."""


# Errors that concern one table: only a change of the value at the source resolves them.
Unreadable: TypeAlias = DecodeError | UntranslatableText
UNREADABLE = (DecodeError, UntranslatableText)


class LogError(TidemarkError):
    """An error of the log on the local disk."""


class LogDamaged(LogError):
    """A file of the log is damaged or missing."""


class LogDiskFull(LogError):
    """No space is left for the log. No data is lost."""


class LogDiskFailed(LogError):
    """An operation on a file of the log failed."""


class LogInUse(LogError):
    """Another process writes the log."""


class LogTrimmed(LogError):
    """The requested data was removed from the log after it was applied."""


class LogBehind(LogError):
    """The requested LSN has not been received yet."""


class ReceiveFailed(TidemarkError):
    """The receiver ended without reporting an error, or is not running."""


class TargetError(TidemarkError):
    """An error of another PostgreSQL as the target."""


class ProgramMissing(TargetError):
    """The programs pg_dump and pg_restore were not found, or are older than the source."""


class UnsupportedArchive(TargetError):
    """An archive of pg_dump has an entry that Tidemark does not handle, or is incomplete."""


class DumpFailed(TargetError):
    """The program pg_dump failed."""


class RestoreFailed(TargetError):
    """The program pg_restore failed, or an object that it restored does not exist."""


class TargetNotReady(TargetError):
    """The target lacks a role, an extension or a privilege, or is not empty."""


class TargetTableUnfit(TargetError):
    """A table of the target is missing, not empty, or differs from that of the source."""


class RowRejected(TargetError):
    """The target rejected a row, or did not store it."""


class TargetDiffers(TargetError):
    """The target lacks a row or value that it must have, or has one that it must not have."""


class TargetInUse(TargetError):
    """Another process writes the target."""


class TargetBehind(TargetError):
    """The target does not have the changes up to an LSN yet."""


class SourceAltered(TargetError):
    """A table was altered at the source, and the target does not fit it."""


class LakeError(TidemarkError):
    """An error of the lake."""


class LakeMissing(LakeError):
    """The directory is not a lake."""


class LakeDamaged(LakeError):
    """A file of the lake is damaged or missing."""


class LakeInUse(LakeError):
    """Another process writes the lake."""


class LakeDiskFull(LakeError):
    """No space is left for the lake. No data is lost."""


class LakeDiskFailed(LakeError):
    """An operation on a file of the lake failed."""


class LakeAccessDenied(LakeError):
    """The process may not read or write a file of the lake."""


class CommitUnknown(LakeError):
    """The outcome of a commit to a Delta table could not be determined."""


class NotAnswerable(LakeError):
    """The mirror cannot answer this read exactly."""


class Unproven(NotAnswerable):
    """A statement in PostgreSQL's dialect that the mirror is not proven to answer as PostgreSQL does."""


class EngineRefused(NotAnswerable):
    """An engine did not compute a part of a statement: a value or the number of rows exceeds what it may return."""


class SparkError(TidemarkError):
    """An error of Spark or Java."""


class TaskFailed(SparkError):
    """A Spark task or its Python worker failed. The task can be repeated."""


class FolderNotShared(SparkError):
    """An executor does not have the driver's directory."""


class JavaMissing(SparkError):
    """Java 17 or later was not found."""


class SparkSettingsDiffer(SparkError):
    """The session has options that can change a result."""


class ExitCode(IntEnum):
    """The exit codes of `tidemark`. `tidemark --help` lists them with their descriptions."""

    OK = 0
    UNEXPECTED = 1
    USAGE = 2
    CHECKS_FAILED = 3
    UNREACHABLE = 4
    REFUSED = 5
    TRY_LATER = 6
    SPARK = 7
    DAMAGED = 8
    LOG = 9
    LAKE = 10
    NOT_ANSWERABLE = 11
    DIFFERENT = 12
    UNHEALTHY = 13
    INTERRUPTED = 130
    TERMINATED = 143

    @property
    def description(self) -> str:
        """One line for `tidemark --help` and the documentation."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS: Mapping[ExitCode, str] = MappingProxyType(
    {
        ExitCode.OK: "success",
        ExitCode.UNEXPECTED: "an error without a code of its own",
        ExitCode.USAGE: "an argument is not valid, or LAKE is not a lake",
        ExitCode.CHECKS_FAILED: "the source or target does not meet a requirement (`doctor`, `setup`)",
        ExitCode.UNREACHABLE: "the source does not accept connections, or a connection was lost",
        ExitCode.REFUSED: "the source rejected the operation or does not support it",
        ExitCode.TRY_LATER: "a lock, a limit or another process prevents it: retry later",
        ExitCode.SPARK: "Spark or Java failed, or the Spark session does not fit",
        ExitCode.DAMAGED: "the log, the lake or the replication stream is damaged",
        ExitCode.LOG: "the log cannot be written or lacks the requested data",
        ExitCode.LAKE: "the lake cannot be written",
        ExitCode.NOT_ANSWERABLE: "the mirror cannot answer the read exactly",
        ExitCode.DIFFERENT: "the source and its mirror or target differ (`compare`)",
        ExitCode.UNHEALTHY: "the mirror does not run, or is too far behind (`status --check`)",
        ExitCode.INTERRUPTED: "stopped by SIGINT (Ctrl-C)",
        ExitCode.TERMINATED: "stopped by SIGTERM before the command was complete",
    }
)


class Retry(Enum):
    """What a running pipeline does after an error."""

    NEVER = "stop and report the error"
    BACK_OFF = "reconnect and retry, after a growing pause"
    AGAIN = "repeat the transaction at once"


@dataclass(frozen=True, slots=True)
class Policy:
    """The retry policy and the exit code of an error."""

    retry: Retry
    exit_code: ExitCode


POLICY: Mapping[type[TidemarkError], Policy] = MappingProxyType(
    {
        TidemarkError: Policy(Retry.NEVER, ExitCode.UNEXPECTED),
        Stopped: Policy(Retry.NEVER, ExitCode.INTERRUPTED),
        InvalidValue: Policy(Retry.NEVER, ExitCode.USAGE),
        SourceError: Policy(Retry.NEVER, ExitCode.REFUSED),
        SourceUnreachable: Policy(Retry.BACK_OFF, ExitCode.UNREACHABLE),
        SourceBusy: Policy(Retry.BACK_OFF, ExitCode.TRY_LATER),
        ConnectionLost: Policy(Retry.BACK_OFF, ExitCode.UNREACHABLE),
        AuthenticationRefused: Policy(Retry.NEVER, ExitCode.REFUSED),
        NotPermitted: Policy(Retry.NEVER, ExitCode.REFUSED),
        TimedOut: Policy(Retry.BACK_OFF, ExitCode.TRY_LATER),
        Conflict: Policy(Retry.AGAIN, ExitCode.TRY_LATER),
        ObjectMissing: Policy(Retry.NEVER, ExitCode.REFUSED),
        ObjectExists: Policy(Retry.NEVER, ExitCode.REFUSED),
        ObjectInUse: Policy(Retry.BACK_OFF, ExitCode.TRY_LATER),
        SettingsNotPinned: Policy(Retry.NEVER, ExitCode.REFUSED),
        UnsupportedServer: Policy(Retry.NEVER, ExitCode.REFUSED),
        NotTheSameSource: Policy(Retry.NEVER, ExitCode.REFUSED),
        SourceForked: Policy(Retry.NEVER, ExitCode.REFUSED),
        SlotBlocked: Policy(Retry.BACK_OFF, ExitCode.TRY_LATER),
        NotOurs: Policy(Retry.NEVER, ExitCode.REFUSED),
        PublicationDiffers: Policy(Retry.NEVER, ExitCode.REFUSED),
        SlotMissing: Policy(Retry.NEVER, ExitCode.REFUSED),
        SlotRecreated: Policy(Retry.NEVER, ExitCode.REFUSED),
        SlotInvalidated: Policy(Retry.NEVER, ExitCode.REFUSED),
        SlotAhead: Policy(Retry.NEVER, ExitCode.REFUSED),
        DecodingFailed: Policy(Retry.NEVER, ExitCode.REFUSED),
        NotAllBinary: Policy(Retry.BACK_OFF, ExitCode.TRY_LATER),
        TableChanged: Policy(Retry.BACK_OFF, ExitCode.TRY_LATER),
        UntranslatableText: Policy(Retry.NEVER, ExitCode.REFUSED),
        WalLimitReached: Policy(Retry.NEVER, ExitCode.REFUSED),
        UnexpectedSourceError: Policy(Retry.NEVER, ExitCode.UNEXPECTED),
        DecodeError: Policy(Retry.NEVER, ExitCode.DAMAGED),
        MalformedMessage: Policy(Retry.NEVER, ExitCode.DAMAGED),
        MalformedValue: Policy(Retry.NEVER, ExitCode.DAMAGED),
        UnknownRelation: Policy(Retry.NEVER, ExitCode.DAMAGED),
        UnsupportedMessage: Policy(Retry.NEVER, ExitCode.REFUSED),
        LogError: Policy(Retry.NEVER, ExitCode.LOG),
        LogDamaged: Policy(Retry.NEVER, ExitCode.DAMAGED),
        LogDiskFull: Policy(Retry.NEVER, ExitCode.LOG),
        LogDiskFailed: Policy(Retry.NEVER, ExitCode.LOG),
        LogInUse: Policy(Retry.NEVER, ExitCode.TRY_LATER),
        LogTrimmed: Policy(Retry.NEVER, ExitCode.LOG),
        LogBehind: Policy(Retry.BACK_OFF, ExitCode.TRY_LATER),
        ReceiveFailed: Policy(Retry.NEVER, ExitCode.UNEXPECTED),
        TargetError: Policy(Retry.NEVER, ExitCode.REFUSED),
        ProgramMissing: Policy(Retry.NEVER, ExitCode.USAGE),
        UnsupportedArchive: Policy(Retry.NEVER, ExitCode.REFUSED),
        DumpFailed: Policy(Retry.NEVER, ExitCode.REFUSED),
        RestoreFailed: Policy(Retry.NEVER, ExitCode.REFUSED),
        TargetNotReady: Policy(Retry.NEVER, ExitCode.CHECKS_FAILED),
        TargetTableUnfit: Policy(Retry.NEVER, ExitCode.REFUSED),
        RowRejected: Policy(Retry.NEVER, ExitCode.REFUSED),
        TargetDiffers: Policy(Retry.NEVER, ExitCode.DIFFERENT),
        TargetInUse: Policy(Retry.NEVER, ExitCode.TRY_LATER),
        TargetBehind: Policy(Retry.NEVER, ExitCode.TRY_LATER),
        SourceAltered: Policy(Retry.NEVER, ExitCode.REFUSED),
        LakeError: Policy(Retry.NEVER, ExitCode.LAKE),
        LakeMissing: Policy(Retry.NEVER, ExitCode.USAGE),
        LakeDamaged: Policy(Retry.NEVER, ExitCode.DAMAGED),
        LakeInUse: Policy(Retry.NEVER, ExitCode.LAKE),
        LakeDiskFull: Policy(Retry.BACK_OFF, ExitCode.LAKE),
        LakeDiskFailed: Policy(Retry.NEVER, ExitCode.LAKE),
        LakeAccessDenied: Policy(Retry.NEVER, ExitCode.LAKE),
        CommitUnknown: Policy(Retry.BACK_OFF, ExitCode.TRY_LATER),
        NotAnswerable: Policy(Retry.NEVER, ExitCode.NOT_ANSWERABLE),
        Unproven: Policy(Retry.NEVER, ExitCode.NOT_ANSWERABLE),
        EngineRefused: Policy(Retry.NEVER, ExitCode.NOT_ANSWERABLE),
        SparkError: Policy(Retry.NEVER, ExitCode.SPARK),
        TaskFailed: Policy(Retry.BACK_OFF, ExitCode.SPARK),
        FolderNotShared: Policy(Retry.NEVER, ExitCode.SPARK),
        JavaMissing: Policy(Retry.NEVER, ExitCode.SPARK),
        SparkSettingsDiffer: Policy(Retry.NEVER, ExitCode.SPARK),
    }
)


def policy_of(error: BaseException) -> Policy:
    """Return the policy of the error's class; errors of other libraries are unexpected and are not retried."""
    return POLICY.get(type(error), POLICY[TidemarkError])  # type: ignore[arg-type]


def error_to_json(error: TidemarkError) -> str:
    """Return an error with all its fields as JSON, for another process."""
    return json.dumps({"error": type(error).__name__, "fields": [_plain(each) for each in error.args]})


def error_from_json(text: str) -> TidemarkError:
    """Return the error from the JSON of `error_to_json`."""
    plain = json.loads(text)
    kind = next((each for each in POLICY if each.__name__ == plain["error"]), TidemarkError)
    return kind(*map(_from_plain, plain["fields"]))


def _plain(field: object) -> object:
    if isinstance(field, tuple):
        return [{**asdict(each), "since": each.since.isoformat() if each.since else None} for each in field]
    return field


def _from_plain(field: Any) -> Any:
    if isinstance(field, list):
        since = (each["since"] and datetime.fromisoformat(each["since"]) for each in field)
        return tuple(Blocker(**{**each, "since": when}) for each, when in zip(field, since, strict=True))
    return field
