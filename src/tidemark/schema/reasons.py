"""The reasons why a table cannot be read, with their fixes: one list for rejected reads and `tidemark status`. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.clock import Lsn
from tidemark.errors import Blocker, TidemarkError
from tidemark.schema.display import quoted, sql_name
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Persistence, Table

COPY_AGAIN = "Run `tidemark sync SOURCE LAKE`, which copies the table again."
NOT_YET = "transactions that began before the table was published have not ended"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a table cannot be read, and the SQL statement or command that fixes it, if there is one."""

    text: str = ""
    fix: str = ""


NO_REASON = Reason()
NOT_COPIED = Reason(
    "the table has rows that have not been copied yet", "Run `tidemark sync SOURCE LAKE`, which copies the table."
)
ALTERED_UNSEEN = Reason(
    "the table must be copied again: it was altered more than once between two catalog snapshots", COPY_AGAIN
)
NOT_PUBLISHED = Reason(
    "the table is not published, so its changes are not received", "Publish the table with `tidemark setup SOURCE`."
)
PUBLISHED_LATE = Reason(
    "the table was published while transactions were running, so some of their changes were not received", COPY_AGAIN
)
FIRST_POLL = Reason("the table is copied by the poll that runs now")
ONCE_DROPPED = Reason("the table was dropped or removed from the publication")
DESELECTED = Reason("the table was dropped, or is excluded by `--table` or `--exclude`")
UNION_DROPPED = Reason("the partitioned table was dropped, or none of its partitions is published")
UNION_ALTERED = Reason("the partitions or columns of the table changed between two catalog snapshots")
STREAMED = Reason("the mirror changed from polling to logical decoding")


def being_altered(table: Fingerprint, upto: Lsn) -> Reason:
    """The definition of a table is known up to an LSN only, because of a transaction with a lock on it."""
    locks = f"SELECT pid, mode FROM pg_locks WHERE relation = {table.oid};"  # noqa: S608 - text for users
    return Reason(
        f"its definition is known up to {upto}: a transaction that may have altered it has not ended, or its change is "
        "not applied yet",
        f"Find the transaction with `{locks}` at the source.",
    )


def no_replica_identity(table: Fingerprint) -> Reason:
    """The table has no replica identity, so PostgreSQL publishes no UPDATE or DELETE of it."""
    alter = f"ALTER TABLE {sql_name(table)} REPLICA IDENTITY FULL;"
    return Reason(
        "the table has no replica identity, so its updates and deletes are not published",
        f"Run `{alter}` at the source, or add a primary key.",
    )


def open_transactions(blockers: Mapping[Blocker, str] | None = None) -> Reason:
    """Transactions from before the publication are still running; their earlier changes are not in the stream.

    Each blocker comes with the SQL statement that ends it.
    """
    if not blockers:
        return Reason(NOT_YET, "Wait for the transactions to end.")
    statements = " ".join(f"`{statement}`" for statement in blockers.values())
    found = "; ".join(map(str, blockers))
    return Reason(f"{NOT_YET}: {found}", f"Wait for the transactions to end, or run {statements}.")


def undecodable(table: Fingerprint, message: str) -> Reason:
    """The table contains a value that cannot be stored."""
    return Reason(message, f"Update or delete the value at the source, then run `{resync_command(table)}`.")


def copy_failed(table: Fingerprint, error: TidemarkError, *, unreadable: bool) -> Reason:
    """A copy failed and is retried."""
    found = undecodable(table, error.message) if unreadable else Reason(error.message, error.hint)
    return Reason(f"the copy failed and is retried: {found.text}", found.fix)


def altered(changes: str) -> Reason:
    """The table was altered: it is readable before and after, but not in between."""
    return Reason(f"the table was altered between two catalog snapshots: {changes or 'the change was reverted'}")


def needs_copy(changes: str) -> Reason:
    """The table was altered in a way that the stream does not show."""
    return Reason(f"the table must be copied again: {changes or 'it was altered'}", COPY_AGAIN)


def not_supported(flaw: str) -> Reason:
    """The table has a definition that cannot be mirrored."""
    return Reason(f"the table cannot be mirrored: {flaw}", "Change this at the source to text that is valid in UTF-8.")


def skipped(table: Table, why: str) -> Reason:
    """The table cannot be mirrored in its current state."""
    if table.flaw is not None:
        return not_supported(table.flaw)
    alter = f"ALTER TABLE {sql_name(table)} SET LOGGED;"
    fix = f"Run `{alter}` at the source." if table.persistence is Persistence.UNLOGGED else ""
    return Reason(f"the table cannot be mirrored: {why}", fix)


def restarted(after: str, cause: str) -> Reason:
    """The mirror was restarted with a new slot and a new log."""
    return Reason(f"the mirror was restarted ({cause}), and changes committed after {after} are missing", COPY_AGAIN)


def polled_since(after: str) -> Reason:
    """The mirror changed from the stream to polling."""
    return Reason(
        f"the mirror changed from the stream to polling, and changes committed after {after} and before the "
        "next copy of the table are missing",
        COPY_AGAIN,
    )


def not_permitted(table: Table) -> Reason | None:
    """The role of the connection cannot read all rows of the table; None if it can."""
    if not table.schema_usable:
        grant = f"GRANT USAGE ON SCHEMA {quoted(table.schema)} TO role;"
        return Reason("permission denied: the role has no USAGE privilege on the schema", f"Run `{grant}`.")
    if not table.selectable:
        grant = f"GRANT SELECT ON {sql_name(table)} TO role;"
        return Reason("permission denied: the role has no SELECT privilege on the table", f"Run `{grant}`.")
    if table.row_security:
        return Reason("row-level security hides rows of the table from the role", "Run `ALTER ROLE role BYPASSRLS;`.")
    return None


def resync_command(table: Fingerprint) -> str:
    """Return the command that copies a table again."""
    return f"tidemark resync LAKE {shlex.quote(table.qualified)}"
