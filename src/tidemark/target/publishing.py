"""The publication of a clone: complete before the snapshot in which tables are recorded, and never changed after it.

The stream has every later change of a recorded table if the snapshot shows the table in the publication, and if no
transaction that began before that is still running: the stream omits what such a transaction wrote before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from tidemark.clock import Xid8
from tidemark.errors import PublicationDiffers
from tidemark.logs import fields
from tidemark.pipeline.publishing import require_published
from tidemark.postgres.blockers import described, older_than
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Persistence
from tidemark.target.copying import has_own_rows
from tidemark.target.options import CloneOptions

_PAUSE_S, _REPORT_S = 0.2, 60.0
_NEXT = "select pg_snapshot_xmax(pg_current_snapshot())::text"
_OLDEST = "select pg_snapshot_xmin(pg_current_snapshot())::text"
_LOGGER = logging.getLogger("tidemark.target")


class TablePublishing:
    """Publishes the selected tables, and waits for the transactions that began before."""

    def __init__(self, options: CloneOptions) -> None:
        self._options = options
        self._after: Xid8 | None = None
        self._missing: frozenset[int] = frozenset()

    def publish(self, *, strict: bool = False) -> None:
        """Publish the selected tables; with `strict`, a pattern that matches no table is an error."""
        require_published(self._options, strict=strict)
        with self._options.open_source() as session:
            self._after = Xid8.parse(session.row(_NEXT)[0])

    def wait(self, require_running: Callable[[], None]) -> None:
        """Wait until all transactions have ended that began before the last `publish`."""
        reported_at = float("-inf")
        with self._options.open_source() as session:
            while self._after is not None and Xid8.parse(session.row(_OLDEST)[0]) < self._after:
                found = older_than(session, self._after)
                if found and time.monotonic() > reported_at + _REPORT_S:
                    reported_at, text = time.monotonic(), described(session, found)
                    extra = fields(blockers=[str(blocker) for blocker in found])
                    _LOGGER.warning("the copy is waiting for running transactions: %s", text, extra=extra)
                require_running()
                time.sleep(_PAUSE_S)

    def includes(self, tables: Mapping[int, Fingerprint]) -> bool:
        """Whether all tables of a snapshot are published; raise an error if a table could not be published."""
        publication = self._options.names.publication
        missing = {
            oid
            for oid, table in tables.items()
            if has_own_rows(table) and table.persistence is Persistence.PERMANENT and not table.is_in(publication)
        }
        if failed := missing & self._missing:
            names = ", ".join(sorted(tables[oid].qualified for oid in failed))
            raise PublicationDiffers(
                f"publication {publication} does not include {names}",
                "Give each of these tables a replica identity (`alter table … replica identity full`), leave it out "
                "with `--exclude`, or use `--mode poll`.",
            )
        self._missing = frozenset(missing)
        return not missing
