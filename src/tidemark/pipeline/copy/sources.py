"""How tasks read in the snapshot of the driver: they are other processes, and may run on other machines.

A task imports the snapshot by its name. If only the session of the driver can use the snapshot, the driver runs the
queries, and tasks read files with the data that the server sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pyarrow as pa

from tidemark.errors import in_short
from tidemark.pipeline.copy.drain import CHUNK_BYTES
from tidemark.pipeline.copy.parts import Part
from tidemark.pipeline.copy.reading import PartQuery
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.spark import TasksStopped
from tidemark.storage.disk import room_in
from tidemark.values.copy import CopyBatch, CopyDecoder
from tidemark.values.types import Decoding

_COMPRESSION = "lz4"
_COPYING = Timeouts(statement_s=0, idle_in_transaction_s=0)


@dataclass(frozen=True, slots=True)
class Imported:
    """The source of a copy: a server, and a snapshot that another session keeps open there.

    It is sent to the executors, which open their own connections, with the password if there is one. Its `repr` omits
    the connection string.
    """

    conninfo: str = field(repr=False)
    snapshot_id: str

    def pieces(self, query: PartQuery) -> Iterator[memoryview]:
        """The data that the server sends."""
        dsn = Dsn(self.conninfo)
        with Session.open(dsn, "copy", _COPYING) as session:
            session.begin(snapshot_id=self.snapshot_id)
            yield from query.copied(session, dsn)


@dataclass(frozen=True, slots=True)
class Spooled:
    """The source of a copy that only the driver can read: files with the data that the server sent."""

    files: Mapping[Part, Path]

    def pieces(self, query: PartQuery) -> Iterator[memoryview]:
        """The data that the server sent for a part."""
        with pa.input_stream(str(self.files[query.part]), _COMPRESSION) as file:
            while piece := file.read(CHUNK_BYTES):
                yield memoryview(piece)


CopySource = Imported | Spooled


@dataclass(frozen=True, slots=True)
class PartSources:
    """A snapshot in which tasks read. Data that the driver reads for them is in `folder` until they have ended."""

    snapshot: SharedSnapshot
    folder: Path
    stopping: Callable[[], bool] = lambda: False

    @contextmanager
    def provided(self, queries: Iterable[PartQuery]) -> Iterator[CopySource]:
        """The source from which a task can read the results of these queries."""
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
                with suppress(OSError):  # the directory is emptied when a sync starts, and before each poll
                    file.unlink()

    def _spool(self, query: PartQuery, path: Path) -> None:
        try:
            with room_in(self.folder), self.snapshot.session("copy", _COPYING) as session:
                if self.stopping():
                    raise TasksStopped
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
            session.close()  # the rest of the COPY data is still unread
            raise


def read_part(source: CopySource, query: PartQuery, decodings: Sequence[Decoding]) -> Iterator[CopyBatch]:
    """The rows of a query, in batches of columns."""
    decoder = CopyDecoder(decodings, query.names)
    for piece in source.pieces(query):
        yield from decoder.feed(piece)
    yield from decoder.finish()
