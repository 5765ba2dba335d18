"""The processes of a session: a program that was started with `start_new_session`, and everything that it started."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

DRIVER, JVM, WORKERS, RECEIVER = b"tidemark.cli.main", b"java", b"pyspark.daemon", b"tidemark.receive"


def in_session(leader: int, name: bytes = b"") -> list[int]:
    """The living processes of a session, by what their command lines contain."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z" and name in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found
