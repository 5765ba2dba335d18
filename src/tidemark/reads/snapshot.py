"""What a read is made from: the log's position, then how far the lake is, then a table's files, in this order.

Data moves from the log to the lake and is removed from the log only afterwards. So whoever looks upstream first misses
nothing in between: changes up to `applied` are in the files, those above it in the log's tail.
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
    """The lake and the log as they are now; taken anew for every read."""

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
        """The last position up to which every commit is there, however the tables are defined."""
        return max(self.received, self.cycle.safe)

    @cached_property
    def answerable(self) -> Lsn:
        """The last position at which all is known: what was committed, and how the tables were defined."""
        return min(self.cycle.known, self.there)

    def require(self, boundary: Boundary, *, defined: bool = False) -> None:
        """Refuse what lies above, and what lies below the window, which is looked at now: files may be gone since.

        `defined` says that it is known by other means how the tables are defined there.
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
        """Why the mirror was started over, while tables are still to be copied again."""
        events = [event for history in self.lake.tables().values() if (event := history.restarted) is not None]
        return next((event.reason for event in events if event.after >= self.cycle.known), None)

    def is_begun_again(self) -> bool:
        """Whether another log has begun since this was taken: then what only the log had may be gone."""
        if self.reader is None:
            return False
        mirror = read_mirror(self.lake.log, Disk())
        return mirror is None or mirror.start != self.log_start

    def changes(self, path: str) -> ChangeFiles:
        """A table's files. Whatever is safe is in them, also if the table itself has not heard of it."""
        return read_changes(self.lake.path, path, self.cycle.safe)


def log_reader(lake: Lake) -> LogReader | None:
    """The lake's log, if it can be reached from here and goes on where the lake ends."""
    try:
        mirror = read_mirror(lake.log, Disk())
        if mirror is None or mirror.start is None or not lake.is_continued_by(mirror.identity, mirror.start):
            return None
        return LogReader(lake.log)
    except LogError:
        return None
