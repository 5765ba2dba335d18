"""Display of the events of a running sync or clone: a live status on a terminal, otherwise log lines, or JSON."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tidemark.clock import Lsn
from tidemark.lake.pipeline_state import State
from tidemark.logs import ROOT, be_quiet, current_mirror, fields_of, is_json, redirected
from tidemark.pipeline.events import StateChanged, SyncEnded, SyncEvent, SyncProgress, as_json
from tidemark.receive.options import PROCESS
from tidemark.units import format_duration, format_size

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

LINE_S = 60.0  # interval of progress lines in a log
JSON_S = 2.0  # minimum interval of progress events as JSON; unchanged progress is not repeated
BARS = 8  # maximum number of tables with a progress bar


class Display(ABC):
    """A display of events, which several threads emit."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def emit(self, event: SyncEvent) -> None:
        """Show an event; can be called from any thread."""
        with self._lock:
            self.show(event)

    @abstractmethod
    def show(self, event: SyncEvent) -> None:
        """Show an event; calls are serialized by `emit`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        return None


class LogDisplay(Display):
    """Logs each event, and the progress once a minute. Even if it is quiet, the end is logged."""

    def __init__(self, *, quiet: bool = False, name: str = "sync") -> None:
        super().__init__()
        self._logger = logging.getLogger(f"{ROOT}.{name}")
        self._end_level = self._logger.getEffectiveLevel()
        if quiet:
            be_quiet()
        first = time.monotonic() + LINE_S
        self._next: defaultdict[str, float] = defaultdict(lambda: first)  # of each mirror

    def show(self, event: SyncEvent) -> None:
        """Log an event."""
        if isinstance(event, SyncProgress):
            mirror = current_mirror()
            if time.monotonic() < self._next[mirror]:
                return
            self._next[mirror] = time.monotonic() + LINE_S
        least = self._end_level if isinstance(event, SyncEnded) else self._logger.getEffectiveLevel()
        if event.level >= least:
            extra = {"fields": {name: value for name, value in as_json(event).items() if name != "time"}}
            name = self._logger.name
            record = self._logger.makeRecord(name, event.level, "", 0, "%s", (event,), None, extra=extra)
            self._logger.handle(record)


_TEXT = logging.Formatter("%(message)s")  # with the traceback of an unexpected error


@dataclass(frozen=True, slots=True)
class Message:
    """A log record among the events; `part` is the process that logged it, sync or receive."""

    event: ClassVar[str] = "message"

    text: str
    part: str
    warning: bool
    fields: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, record: logging.LogRecord) -> Message:
        """The message of a record."""
        received = record.processName == PROCESS or record.name == f"{ROOT}.receive"
        warning = record.levelno >= logging.WARNING
        return cls(_TEXT.format(record), "receive" if received else "sync", warning, fields_of(record))


class MessageHandler(logging.Handler):
    """Prints log records among the events of a `JsonDisplay`."""

    def __init__(self, display: JsonDisplay) -> None:
        super().__init__()
        self._display = display

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record. A closed pipe ends the pipeline with the next event, in its own thread."""
        try:
            self._display.print(Message.of(record))
        except BrokenPipeError:
            pass
        except Exception:  # noqa: BLE001 - as for every handler: a record that cannot be printed stops nothing
            self.handleError(record)


class JsonDisplay(Display):
    """Prints each event and each log record as one JSON object on a line of standard output."""

    def __init__(self) -> None:
        super().__init__()
        self._next: defaultdict[str, float] = defaultdict(float)  # of each mirror
        self._last: dict[str, str] = {}
        self._held = ExitStack()

    def __enter__(self) -> Self:
        self._held.enter_context(redirected(MessageHandler(self)))
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._held.close()

    def print(self, message: Message) -> None:
        """Print a message; can be called from any thread."""
        with self._lock:
            _print(as_json(message))

    def show(self, event: SyncEvent) -> None:
        """Print an event."""
        mirror = current_mirror()
        if isinstance(event, SyncProgress) and time.monotonic() < self._next[mirror]:
            return
        plain = as_json(event)
        if isinstance(event, SyncProgress):
            news = json.dumps({name: value for name, value in plain.items() if name not in ("time", "last_fold_s")})
            if news == self._last.get(mirror):
                return
            self._next[mirror], self._last[mirror] = time.monotonic() + JSON_S, news
        _print(plain)


def _print(plain: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(plain, ensure_ascii=False)}\n")
    sys.stdout.flush()


class TerminalDisplay(LogDisplay):
    """Logs events above a live status: state, position, lag, rate, last fold, and a bar for each table being copied."""

    def __init__(self, stopping: Callable[[], bool], name: str) -> None:
        super().__init__(name=name)
        from rich.console import Console  # deferred: only a terminal needs it
        from rich.live import Live

        self._progress: SyncProgress | None = None
        self._state, self._stopping = State.STARTING, stopping
        self._begin = time.monotonic()
        self._live = Live(
            console=Console(stderr=True), get_renderable=self._status, transient=True, refresh_per_second=4
        )

    def show(self, event: SyncEvent) -> None:
        """Log an event, or update the status."""
        if isinstance(event, SyncProgress):
            self._progress = event
            return
        if isinstance(event, StateChanged):
            self._state = event.state
        super().show(event)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._live.stop()

    def _status(self) -> Group:
        from rich.console import Group

        state = State.STOPPING if self._stopping() else self._state
        return Group(*status_lines(state, self._progress, time.monotonic() - self._begin))


def status_lines(state: State, progress: SyncProgress | None, running_s: float) -> list[RenderableType]:
    """Return the live status: a line with the position, and the copies below it."""
    from rich.text import Text

    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(state.value, style="bold")
    if progress is None or progress.applied_lsn == Lsn.ZERO:
        line.append(f"  {format_duration(round(running_s))}")
        return [line, *(_copy_bars(progress) if progress is not None else [])]
    parts = [str(progress.applied_lsn)]
    if progress.lag:
        parts.append(f"lag {progress.lag}")
    parts.append(f"{progress.changes_per_s:,.0f} changes/s")
    if progress.last_fold is not None and progress.last_fold_s is not None:
        parts.append(f"folded {progress.last_fold.table} {format_duration(round(progress.last_fold_s))} ago")
    line.append("  " + " · ".join(parts))
    return [line, *_copy_bars(progress)]


def _copy_bars(progress: SyncProgress) -> list[RenderableType]:
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    copies = progress.copies
    if copies.tables_copied >= copies.tables_total:
        return []
    grid = Table.grid(padding=(0, 1))
    for justify in ("left", "left", "right", "right", "right"):
        grid.add_column(justify=justify, no_wrap=True)
    remaining = f"ETA {format_duration(copies.remaining_s)}" if copies.remaining_s else ""
    running = [table for table in copies.tables if table.state == "copying"]
    rows = [(table.table, table.copied_bytes, table.size_bytes, f"{table.rows:,} rows", "") for table in running[:BARS]]
    total = f"{copies.tables_copied} of {copies.tables_total} tables"
    rows.append((total, copies.copied_bytes, copies.size_bytes, f"{format_size(copies.bytes_per_s)}/s", remaining))
    for name, copied, size, rate, eta in rows:
        bar = ProgressBar(total=max(1, size), completed=copied, width=24)
        grid.add_row(name, bar, f"{format_size(copied)} of {format_size(size)}", rate, eta)
    more = [f"and {len(running) - BARS} more tables"] if len(running) > BARS else []
    return [grid, *more]


def display(*, as_json: bool, quiet: bool, stopping: Callable[[], bool], name: str = "sync") -> Display:
    """Return the display for these options of the command `name` and the current standard error."""
    if as_json:
        return JsonDisplay()
    if quiet or is_json() or not sys.stderr.isatty():
        return LogDisplay(quiet=quiet, name=name)
    return TerminalDisplay(stopping, name)
