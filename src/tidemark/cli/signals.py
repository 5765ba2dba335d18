"""SIGINT and SIGTERM: the first one stops a continuous command after its running cycle, the second one at once.

130  stopped by SIGINT (Ctrl-C)
143  stopped by SIGTERM before the command was complete
0  a command without an end of its own, such as `tidemark sync` without --once, stopped by SIGTERM
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from tidemark.errors import ExitCode

SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = "\x1b[?25h\n"


class Terminated(BaseException):
    """Raised on SIGTERM, as KeyboardInterrupt is on SIGINT."""


def raise_terminated(_: int, __: FrameType | None) -> NoReturn:
    """Handle SIGTERM in commands that have no other handler."""
    raise Terminated


class StopSignals:
    """The signals of one command. While `deferred`, the first one is only recorded; otherwise it raises.

    The second one ends the process at once: the lake and the log are as after a crash, and nothing is lost.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._deferred = False
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Return whether a signal was received."""
        return self.number is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Only record the first signal inside the context."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def exit_code(self, *, has_end: bool) -> ExitCode:
        """Return the exit code of a command that was stopped; `has_end` is whether it had an end of its own."""
        if self.number == signal.SIGINT:
            return ExitCode.INTERRUPTED
        return ExitCode.TERMINATED if has_end else ExitCode.OK

    def _handle(self, number: int, _: FrameType | None) -> None:
        if self.number is not None:
            _exit_at_once(number)
        self.number = number
        if not self._deferred:
            raise KeyboardInterrupt if number == signal.SIGINT else Terminated


def _exit_at_once(number: int) -> NoReturn:
    if os.isatty(sys.__stderr__.fileno() if sys.__stderr__ is not None else 2):
        os.write(2, _SHOW_CURSOR.encode())
    os.write(2, b"tidemark: stopped at once by a second signal\n")
    os._exit(128 + number)
