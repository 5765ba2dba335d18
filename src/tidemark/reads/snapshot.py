"""The state that a read is based on: the received LSN, then the applied LSN, then the files of a table, in this order.

Data moves from the log to the lake and is removed from the log only afterwards. A read that starts upstream therefore
misses nothing: changes up to the applied LSN are in the files, later ones in the tail of the log.
"""

from __future__ import annotations

from functools import cached_property

from tidemark.clock import Boundary, Lsn
from tidemark.errors import LogError, NotAnswerable
from tidemark.lake.changes import ChangeFiles, read_changes
from tidemark.lake.lake import Lake
from tidemark.lake.registers import Cycle, read_retained
from tidemark.log.disk import Disk
from tidemark.log.mirror import read_mirror
from tidemark.log.reader import LogReader


class LakeView:
    """The lake and the log at one time; each read creates a new view."""

    def __init__(self, lake: Lake, reader: LogReader | None) -> None:
        self.lake = lake
        self.reader = reader
        if reader is not None:
            reader.refresh()
        self.received = reader.received if reader is not None else Lsn.ZERO
        self.log_start = reader.start if reader is not None else None
        self.cycle: Cycle = lake.cycle()

    @cached_property
    def there(self) -> Lsn:
        """The last LSN up to which every commit is available, regardless of table definitions."""
        return max(self.received, self.cycle.applied_lsn)

    @cached_property
    def answerable(self) -> Lsn:
        """The last LSN at which the commits are available, and the definitions of all tables that are not behind."""
        return min(self.cycle.schema_lsn, self.there)

    def require(self, boundary: Boundary, *, defined: bool = False) -> None:
        """Reject a boundary above the last available LSN or below the retained LSN.

        The retained LSN is read by this call, because files may have been removed since the view was created. `defined`
        means that the table definitions at the boundary are established by other means.
        """
        if boundary.lsn > (upto := self.there if defined else self.answerable):
            why = self._restarted() or f"the mirror is complete up to {upto}"
            raise NotAnswerable(
                f"{boundary.lsn} cannot be read yet: {why}",
                f"Use `latest` or an LSN up to {upto}, or retry the command later.",
            )
        retained = read_retained(self.lake.path)
        below = boundary.floor
        if below < retained:
            raise NotAnswerable(
                f"{below} cannot be read: the history is kept from {retained} on",
                f"Use an LSN from {retained} to {self.answerable}.",
            )

    def _restarted(self) -> str | None:
        """Return why the mirror was restarted, while tables still have to be copied again."""
        events = [event for history in self.lake.tables().values() if (event := history.restarted) is not None]
        return next((event.reason for event in events if event.after >= self.cycle.schema_lsn), None)

    def is_begun_again(self) -> bool:
        """Return whether a new log was started since this view: changes that only the old log had may be lost."""
        if self.reader is None:
            return False
        mirror = read_mirror(self.lake.log, Disk())
        return mirror is None or mirror.start != self.log_start

    def changes(self, path: str) -> ChangeFiles:
        """Return the change files of a table, which are complete up to the lake's applied LSN."""
        return read_changes(self.lake.path, path, self.cycle.applied_lsn)


def log_reader(lake: Lake) -> LogReader | None:
    """Return a reader of the lake's log, if the log is accessible and continues where the lake ends; otherwise None."""
    try:
        mirror = read_mirror(lake.log, Disk())
        if mirror is None or mirror.start is None or not lake.is_continued_by(mirror.identity, mirror.start):
            return None
        return LogReader(lake.log)
    except LogError:
        return None
