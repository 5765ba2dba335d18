"""What a running mirror does: bars on a terminal, lines in a log, JSON lines for programs."""

from __future__ import annotations

import json
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import asdict
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from tidemark.apply.cycle import Applied
    from tidemark.poll.poller import Polled
    from tidemark.sync.progress import Progress

LINE_S = 2.0


class Shown(ABC):
    """One way to show it."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Something happened."""

    @abstractmethod
    def applied(self, applied: Applied) -> None:
        """A cycle was applied."""

    @abstractmethod
    def polled(self, polled: Polled) -> None:
        """A poll was told."""

    @abstractmethod
    def progress(self, progress: Progress) -> None:
        """Copies have come this far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        return None


class Quiet(Shown):
    """Only what happens to tables."""

    def say(self, text: str) -> None:
        """On standard error, which is for people."""
        click.echo(f"tidemark sync: {text}", err=True)

    def applied(self, applied: Applied) -> None:
        """Nothing."""

    def polled(self, polled: Polled) -> None:
        """Nothing."""

    def progress(self, progress: Progress) -> None:
        """Nothing."""


class Lines(Quiet):
    """A line for each cycle, and every few seconds one for the copies."""

    def __init__(self) -> None:
        self._next, self._last = 0.0, (0, 0)

    def applied(self, applied: Applied) -> None:
        """One line."""
        self.say(f"{applied.upto}  {applied.transactions:,} transactions  {applied.changes:,} changes")

    def polled(self, polled: Polled) -> None:
        """One line."""
        gone = "" if polled.reconciled else ", not looked for rows that are gone"
        self.say(f"{polled.upto}  {polled.changes:,} changes observed{gone}")

    def progress(self, progress: Progress) -> None:
        """One line for all tables, if there is news."""
        total = progress.total()
        news = total.done, total.copied_bytes
        if news == self._last or (time.monotonic() < self._next and total.done < total.tables):
            return
        left = f", {total.left_s:.0f} s left" if total.left_s else ""
        self.say(
            f"copied {total.done} of {total.tables} tables, {_megabytes(total.copied_bytes)} of "
            f"{_megabytes(total.size_bytes)}, {total.rows:,} rows, {_megabytes(total.rate)}/s{left}"
        )
        self._next, self._last = time.monotonic() + LINE_S, news


class JsonLines(Shown):
    """An object on a line of its own for everything, on standard output."""

    def __init__(self) -> None:
        self._next, self._last = 0.0, ""

    def say(self, text: str) -> None:
        """As a message."""
        self._write("message", text=text)

    def applied(self, applied: Applied) -> None:
        """A cycle."""
        self._write("applied", **{**asdict(applied), "upto": str(applied.upto)})

    def polled(self, polled: Polled) -> None:
        """A poll."""
        self._write("polled", **{**asdict(polled), "upto": str(polled.upto)})

    def progress(self, progress: Progress) -> None:
        """All tables, and each."""
        if time.monotonic() < self._next:
            return
        tables = [
            {name: value for name, value in asdict(each).items() if name != "since"} for each in progress.tables()
        ]
        if (news := json.dumps(tables)) != self._last:
            self._write("copying", **asdict(progress.total()), each=tables)
        self._next, self._last = time.monotonic() + LINE_S, news

    def _write(self, event: str, **said: Any) -> None:
        click.echo(json.dumps({"event": event, "at": time.time(), **said}))
        sys.stdout.flush()


class Bars(Quiet):
    """A bar for each table that is being copied and one for all, below what is said."""

    def __init__(self) -> None:
        from rich.console import Console  # not before: only a terminal needs it
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TaskID,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as RichProgress

        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bars = RichProgress(
            *columns, TextColumn("{task.fields[rows]:,} rows"), console=Console(stderr=True), transient=True
        )
        self._tasks: dict[str, TaskID] = {}

    def say(self, text: str) -> None:
        """Above the bars."""
        self._bars.console.print(f"tidemark sync: {text}", markup=False, highlight=False)

    def progress(self, progress: Progress) -> None:
        """As far as it is."""
        total = progress.total()
        if not total.tables:
            return
        self._show("all tables", total.size_bytes, total.copied_bytes, total.rows, total.done < total.tables)
        for each in progress.tables():
            self._show(each.name, each.size_bytes, each.copied_bytes, each.rows, each.state == "copying")

    def _show(self, name: str, size: int, copied: int, rows: int, runs: bool) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(name, rows=0)
        self._bars.update(self._tasks[name], total=size, completed=copied, rows=rows, visible=runs)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._bars.stop()


def shown(*, as_json: bool, quiet: bool) -> Shown:
    """The way that fits who looks."""
    if as_json:
        return JsonLines()
    if quiet:
        return Quiet()
    return Bars() if sys.stderr.isatty() else Lines()


def _megabytes(size: float) -> str:
    return f"{size / 1e6:,.1f} MB"
