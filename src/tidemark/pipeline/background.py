"""A job of a pipeline that runs in its own thread, and stops with the process."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from tidemark import logs

_PAUSED_S = 0.2


class BackgroundJob(ABC):
    """Runs until `close`; a subclass starts it when it is complete."""

    def __init__(self, name: str) -> None:
        self._stopping, self._paused = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=logs.inherited(self._run), name=name, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """Work until `_stopping` is set. An error must not end it."""

    def pause(self, *, paused: bool) -> None:
        """Begin nothing while the pipeline is paused."""
        (self._paused.set if paused else self._paused.clear)()

    def _rest(self, seconds: float) -> bool:
        """Wait, also while the job is paused; return whether it is to stop."""
        is_stopped = self._stopping.wait(seconds)
        while not is_stopped and self._paused.is_set():
            is_stopped = self._stopping.wait(_PAUSED_S)
        return is_stopped

    @property
    def _is_interrupted(self) -> bool:
        """Whether nothing more is to begin now."""
        return self._stopping.is_set() or self._paused.is_set()

    def close(self) -> None:
        """Stop when the work that has started has ended."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()
