"""A job of a pipeline that runs in its own thread, and stops with the process."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class BackgroundJob(ABC):
    """Runs until `close`; a subclass starts it when it is complete."""

    def __init__(self, name: str) -> None:
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def _run(self) -> None:
        """Work until `_stopping` is set. An error must not end it."""

    def close(self) -> None:
        """Stop when the work that has started has ended."""
        self._stopping.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self.close()
