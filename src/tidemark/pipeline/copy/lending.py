"""A snapshot as tasks read by it, which are other processes and may be elsewhere: by its name, or by what it was asked.

Where nobody else can have it, the driver asks in its own session, and tasks are given files of what the server sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from tidemark.errors import in_short
from tidemark.lake.files import room_in
from tidemark.pipeline.copy.drain import CHUNK_BYTES
from tidemark.pipeline.copy.parts import Part
from tidemark.pipeline.copy.reading import PartQuery
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.spark import Stopped
from tidemark.values.copy import CopyBatch, CopyDecoder
from tidemark.values.types import Decoding

STAGING = "_staging"  # in a lake, for what is read from the source and nobody's yet
_COMPRESSION = "lz4"
_COPYING = Timeouts(statement_s=0, idle_in_transaction_s=0)


@dataclass(frozen=True, slots=True)
class Imported:
    """Where a copy comes from: the server, and a snapshot that someone holds there.

    It goes to the executors, which connect by themselves, with the password if there is one. Nothing prints it.
    """

    conninfo: str = field(repr=False)
    snapshot_id: str

    def pieces(self, query: PartQuery) -> Iterator[memoryview]:
        """What the server sends."""
        dsn = Dsn(self.conninfo)
        with Session.open(dsn, "copy", _COPYING) as session:
            session.begin(snapshot_id=self.snapshot_id)
            yield from query.copied(session, dsn)


@dataclass(frozen=True, slots=True)
class Spooled:
    """Where a copy comes from that only the driver could ask for: files of what the server has sent."""

    files: Mapping[Part, Path]

    def pieces(self, query: PartQuery) -> Iterator[memoryview]:
        """What the server had sent."""
        with pa.input_stream(str(self.files[query.part]), _COMPRESSION) as file:
            while piece := file.read(CHUNK_BYTES):
                yield memoryview(piece)


CopySource = Imported | Spooled


@dataclass(frozen=True, slots=True)
class Lender:
    """A snapshot that tasks are to read by. What is read for those that cannot lies in a folder until they are done."""

    snapshot: SharedSnapshot
    folder: Path
    stopping: Callable[[], bool] = lambda: False

    @contextmanager
    def lent(self, queries: Iterable[PartQuery]) -> Iterator[CopySource]:
        """What a task needs to ask these."""
        if self.snapshot.name is not None:
            yield Imported(self.snapshot.dsn.reveal(), self.snapshot.name)
            return
        files: dict[Part, Path] = {}
        try:
            for query in queries:
                files[query.part] = self.folder / f"{uuid4().hex}.copy"
                self._spool(query, files[query.part])
            yield Spooled(files)
        finally:
            for file in files.values():
                with suppress(OSError):  # the folder is emptied before the next cycle
                    file.unlink()

    def _spool(self, query: PartQuery, path: Path) -> None:
        try:
            with room_in(self.folder), self.snapshot.session("copy", _COPYING) as session:
                if self.stopping():
                    raise Stopped
                self.folder.mkdir(parents=True, exist_ok=True)
                self._write(path, session, query)
        except OSError as error:
            raise in_short(error) from error

    def _write(self, path: Path, session: Session, query: PartQuery) -> None:
        try:
            with pa.output_stream(str(path), _COMPRESSION) as file:
                for piece in query.copied(session, self.snapshot.dsn):
                    file.write(piece)
        except OSError:
            session.close()  # the rest of the copy is still to come there
            raise


def read_part(source: CopySource, query: PartQuery, decodings: Sequence[Decoding]) -> Iterator[CopyBatch]:
    """The rows that are asked for, column by column."""
    decoder = CopyDecoder(decodings, query.names)
    for piece in source.pieces(query):
        yield from decoder.feed(piece)
    yield from decoder.finish()
