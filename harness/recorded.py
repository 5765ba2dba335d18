"""Recorded streams: what a slot of this server sends as pgoutput, message by message, read by SQL."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.database import Database
from tidemark.decode.cells import Bytes, Longs
from tidemark.decode.changes import ChangeBatch, Limits
from tidemark.decode.stream import Said, StreamDecoder
from tidemark.decode.types import Types
from tidemark.schema.table import PgType
from tidemark.source.catalog import read_catalog


@dataclass(frozen=True)
class Recording:
    """Messages side by side in one buffer, as a log would hold them."""

    buffer: Bytes
    starts: Longs
    lengths: Longs

    @classmethod
    def of(cls, messages: list[bytes]) -> Recording:
        """Put messages side by side."""
        lengths = np.array([len(message) for message in messages], np.int64)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])[:-1]
        return cls(np.frombuffer(b"".join(messages), np.uint8), starts, lengths)

    @property
    def messages(self) -> list[bytes]:
        """The messages one by one."""
        return [self.buffer[s : s + n].tobytes() for s, n in zip(self.starts, self.lengths, strict=True)]


@dataclass(frozen=True)
class Recorder:
    """A slot and publications, from whose making on everything is recorded."""

    database: Database
    slot: str
    publications: str = "recorded"

    def recording(self, *, binary: bool = False, streaming: bool | str = False, protocol: int = 2) -> Recording:
        """Everything so far, in one format; can be asked for again in another."""
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
    """Start recording."""
    slot = f"recorded_{database.name}"
    options = "with (publish_generated_columns = stored)" if database.server.install.major >= 18 else ""
    database.admin(
        f"create publication recorded for all tables {options}",
        f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')",
    )
    return Recorder(database, slot)


def types_of(database: Database) -> dict[int, PgType]:
    """Every type that the database's tables use, by oid, with the types inside them."""
    with database.session() as session, session.transaction():
        columns = [column for table in read_catalog(session).tables for column in table.columns]
    return {column.type.oid: column.type for column in columns}


def decode(
    recording: Recording, types: dict[int, PgType], limits: Limits | None = None, version_num: int = 180000
) -> list[ChangeBatch]:
    """All batches of a recording fed at once."""
    decoder = StreamDecoder(Types(types, version_num), limits)
    fed = decoder.feed(recording.buffer, recording.starts, recording.lengths)
    return [item for item in fed if not isinstance(item, Said)]
