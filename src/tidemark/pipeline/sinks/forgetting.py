"""What a running mirror forgets about its tables, once an hour: events that no read needs, and dropped tables."""

from __future__ import annotations

import time

from tidemark.pipeline.sinks.sink import Sink
from tidemark.schema.tracker import SchemaTracker

FORGET_S = 3600.0


class Forgetting:
    """Makes a sink and its tracker forget the same. It is used by the thread that writes to the sink."""

    def __init__(self, sink: Sink, tables: SchemaTracker) -> None:
        self._sink, self._tables = sink, tables
        self._next = 0.0

    def keep_up(self) -> None:
        """Forget what is below the retained LSN, the first time and then every hour."""
        now = time.monotonic()
        if now >= self._next:
            retained = self._sink.retained_lsn()
            self._tables.forget(retained, self._sink.forget(retained))
            self._next = now + FORGET_S
