"""The options of a clone, and sessions on its two servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.pipeline.plan import INTERVAL_S
from tidemark.postgres.capability import Mode
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import Endpoint
from tidemark.receive.options import ReceiveOptions
from tidemark.schema.selection import Selection
from tidemark.target.obstacles import require_direct
from tidemark.target.state import CloneRecord, commit_durably

LOG = "log"


@dataclass(frozen=True, slots=True)
class CloneOptions:
    """The source and the target, the selected tables, and how far to go.

    `folder` is a local directory for the log and the dumped schema. With `follows`, the clone follows its source until
    `endpos`, or until it is stopped, and can be continued; without, it is completed at `endpos`, or at the position
    that the source has when everything is copied. With `once`, it ends at that position in either case. With `repairs`,
    rows of the target that do not fit the changes are repaired; with `carries`, changes of columns at the source are
    made at the target too.

    Without a `mode`, polls are used only if the source does not support logical decoding. A poll has no `endpos`:
    without `follows`, the clone is completed after one poll.
    """

    source: Dsn
    target: Dsn
    names: MirrorNames
    folder: Path
    selection: Selection = field(default_factory=Selection)
    follows: bool = False
    endpos: Lsn | None = None
    once: bool = False
    jobs: int = 4
    pg_bin: Path | None = None
    with_schema: bool = True
    mode: Mode | None = None
    interval_s: float = INTERVAL_S
    repairs: bool = False
    carries: bool = True

    @property
    def log(self) -> Path:
        """The directory of the log."""
        return self.folder / LOG

    def publications(self, mode: Mode) -> tuple[str, ...]:
        """The publications in which the tables of a clone in this mode must remain."""
        return self.names.all_publications if mode is Mode.LOGICAL else ()

    def receive(self, *, binary: bool) -> ReceiveOptions:
        """The options of the receiver."""
        return ReceiveOptions(self.source, self.log, self.names, binary=binary)

    def open_source(self) -> Session:
        """Connect to the source."""
        return Session.open(self.source, "clone")

    def open_target(self) -> Session:
        """Connect to the target; what the session commits survives a crash of the target."""
        session = Session.open(self.target, "clone", server=Endpoint.TARGET)
        try:
            if not session.pooled:
                commit_durably(session)
        except BaseException:
            session.close()
            raise
        return session

    @contextmanager
    def recorded(self) -> Iterator[CloneRecord]:
        """The record of the clone, which no other process writes meanwhile."""
        with self.open_target() as session:
            require_direct(session)
            record = CloneRecord(session, self.names.mirror)
            record.lock()
            try:
                yield record
            finally:
                record.unlock()
