"""The directory of this process for temporary files of its JVM: shuffles, spilled rows and the script that starts it.

The JVM removes its files when it ends, and this process the directory. What a killed process has left is removed by the
next one on the machine: the lock of its directory is free. A directory gets its name once it is locked, so that another
process does not take it for one that was left.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
import time
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from tidemark.errors import TidemarkError
from tidemark.storage import open_storage

_PREFIX, _BEGINNING, _LOCK = "tidemark-java-", "tidemark-beginning-", "lock"
_UNLOCKED_S = 3600.0  # a directory without its name or its lock is that of a process that begins, up to this age


@cache
def scratch_directory() -> Path:
    """Return the directory, which is made at the first call; the lock is held until this process ends."""
    for prefix in (_PREFIX, _BEGINNING):
        for left in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
            with suppress(OSError, TidemarkError):  # that of another user, or removed by another process meanwhile
                _remove_if_left(left)
    beginning = Path(tempfile.mkdtemp(prefix=_BEGINNING))
    lock = open_storage(beginning).lock(_LOCK)
    assert lock is not None  # noqa: S101 - the directory is new
    folder = beginning.rename(beginning.with_name(_PREFIX + beginning.name.removeprefix(_BEGINNING)))

    def remove() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        lock.close()

    atexit.register(remove)
    return folder


def _remove_if_left(folder: Path) -> None:
    if folder.name.startswith(_BEGINNING) or not (folder / _LOCK).exists():
        if time.time() - folder.stat().st_mtime > _UNLOCKED_S:
            shutil.rmtree(folder)
        return
    lock = open_storage(folder).lock(_LOCK)
    if lock is not None:
        with closing(lock):
            shutil.rmtree(folder)
