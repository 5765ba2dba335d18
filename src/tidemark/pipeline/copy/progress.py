"""Progress of copies, for each table and in total: bytes, rows, rate and remaining time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TableProgress:
    """One table. Bytes are those of its pages."""

    name: str
    size_bytes: int
    parts: int
    since: float
    copied_bytes: int = 0
    rows: int = 0
    state: str = "copying"


@dataclass(frozen=True, slots=True)
class Total:
    """All tables that were copied or are being copied. `left_s` is the remaining time at the average rate so far."""

    tables: int
    done: int
    size_bytes: int
    copied_bytes: int
    rows: int
    rate: float
    left_s: float | None


class CopyProgress:
    """Updated by the threads that copy, and read by those that display it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tables: dict[int, TableProgress] = {}

    def planned(self, oid: int, name: str, size_bytes: int, parts: int) -> None:
        """Record that the copy of a table starts."""
        with self._lock:
            self._tables[oid] = TableProgress(name, size_bytes, parts, time.monotonic())

    def copied(self, oid: int, size_bytes: int, rows: int) -> None:
        """Record that a part of a table is copied."""
        with self._lock:
            table = self._tables[oid]
            self._tables[oid] = replace(table, copied_bytes=table.copied_bytes + size_bytes, rows=table.rows + rows)

    def done(self, oid: int) -> None:
        """Record that all parts of a table are copied."""
        self._set_state(oid, "copied")

    def failed(self, oid: int) -> None:
        """Record that the copy of a table failed; it starts over."""
        self._set_state(oid, "failed")

    def seconds(self, oid: int) -> float:
        """The time since the copy of a table started."""
        with self._lock:
            return time.monotonic() - self._tables[oid].since if oid in self._tables else 0.0

    def tables(self) -> tuple[TableProgress, ...]:
        """All tables."""
        with self._lock:
            return tuple(self._tables.values())

    def total(self) -> Total:
        """The sum of all tables."""
        tables = self.tables()
        size, copied = (sum(getattr(each, name) for each in tables) for name in ("size_bytes", "copied_bytes"))
        seconds = time.monotonic() - min((each.since for each in tables), default=time.monotonic())
        rate = copied / seconds if seconds > 0 else 0.0
        left = [each.size_bytes - each.copied_bytes for each in tables if each.state == "copying"]
        done = sum(each.state == "copied" for each in tables)
        return Total(
            len(tables),
            done,
            size,
            copied,
            sum(each.rows for each in tables),
            rate,
            sum(left) / rate if rate > 0 else None,
        )

    def _set_state(self, oid: int, state: str) -> None:
        with self._lock:
            if oid in self._tables:
                self._tables[oid] = replace(self._tables[oid], state=state)
