"""Recorded streams: the pgoutput messages of a slot, read with SQL."""

from __future__ import annotations

from dataclasses import dataclass

from harness.database import Database
from harness.decoding import StreamDecoder
from tidemark.pgoutput.changes import ChangeBatch, Limits, Undecodable
from tidemark.pgoutput.frames import framed
from tidemark.postgres.catalog import read_catalog
from tidemark.schema.table import PgType
from tidemark.values.kernels import Bytes
from tidemark.values.types import Types


@dataclass(frozen=True)
class Recording:
    """Messages one by one, and in one buffer as in a log."""

    messages: list[bytes]
    buffer: Bytes

    @classmethod
    def of(cls, messages: list[bytes]) -> Recording:
        """Put messages into one buffer."""
        return cls(messages, framed(messages))


@dataclass(frozen=True)
class Recorder:
    """A slot and publications; everything since their creation is recorded."""

    database: Database
    slot: str
    publications: str = "recorded"

    def recording(self, *, binary: bool = False, streaming: bool | str = False, protocol: int = 2) -> Recording:
        """Everything recorded so far, in one format; it can be read again in another."""
        options = [
            f"'proto_version', '{protocol}'",
            f"'publication_names', '{self.publications}'",
            "'messages', 'true'",
        ]
        options += ["'binary', 'true'"] if binary else []
        options += [f"'streaming', '{'on' if streaming is True else streaming}'"] if streaming else []
        query = f"select data from pg_logical_slot_peek_binary_changes('{self.slot}', null, null, {', '.join(options)})"
        settings = [
            "set logical_decoding_work_mem = '64kB'",
            "set timezone = 'UTC'",
            "set extra_float_digits = 1",
            "set search_path = ''",
        ]
        return Recording.of([row[0] for row in self.database.admin(*settings, query)])


def record(database: Database) -> Recorder:
    """Create the slot and the publication."""
    slot = f"recorded_{database.name}"
    options = "with (publish_generated_columns = stored)" if database.server.install.major >= 18 else ""
    database.admin(
        f"create publication recorded for all tables {options}",
        f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )
    return Recorder(database, slot)


def types_of(database: Database) -> dict[int, PgType]:
    """Every type that the database's tables use, by OID, including component types."""
    with database.session() as session, session.transaction():
        columns = [column for table in read_catalog(session).tables for column in table.columns]
    return {column.type.oid: column.type for column in columns}


def decode(
    recording: Recording, types: dict[int, PgType], limits: Limits | None = None, version_num: int = 180000
) -> list[ChangeBatch]:
    """Decode a recording in one call, and return its batches."""
    decoder = StreamDecoder(Types(types, version_num), limits)
    items = list(decoder.feed(recording.buffer))
    undecodable = [item for item in items if isinstance(item, Undecodable)]
    assert not undecodable, undecodable[0].reason
    return [item for item in items if isinstance(item, ChangeBatch)]
