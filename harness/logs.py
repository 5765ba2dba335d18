"""Log records for tests: the messages that the package logs, in the order in which they are logged."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tidemark.logs import ROOT


class _Messages(logging.Handler):
    def __init__(self, messages: list[str], name: str) -> None:
        super().__init__()
        self._messages = messages
        self.addFilter(logging.Filter(name))

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(record.getMessage())


@contextmanager
def logged(name: str = ROOT) -> Iterator[list[str]]:
    """The messages of a logger and those below it, from level info up, that are logged while the context lasts."""
    root, messages = logging.getLogger(ROOT), list[str]()
    root.setLevel(min(root.level or logging.INFO, logging.INFO))
    handler = _Messages(messages, name)
    root.addHandler(handler)
    try:
        yield messages
    finally:
        root.removeHandler(handler)
