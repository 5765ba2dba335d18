"""Files locked with `flock` for the lifetime of the owning process; the lock is released when the process ends."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path
from uuid import uuid4


class HeldFile:
    """A new file in a directory, locked until `close`."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self._file: int | None = None
        while self._file is None:
            self.path = folder / f"{uuid4().hex}{suffix}"
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                self._file = file
            else:  # before it was locked, another process has removed it as abandoned
                os.close(file)

    def write(self, text: bytes) -> None:
        """Replace the contents of the file."""
        if self._file is not None:
            os.pwrite(self._file, text, 0)
            os.ftruncate(self._file, len(text))

    def close(self) -> None:
        """Remove the file and release the lock. Idempotent."""
        if self._file is not None:
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


def held_files(folder: Path, suffix: str) -> list[Path]:
    """Return all locked files, sorted by name; files of processes that have ended are removed."""
    return [path for path in sorted(folder.glob(f"*{suffix}")) if _is_held(path)]


def _is_held(path: Path) -> bool:
    with suppress(OSError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            return True
        finally:
            os.close(file)
    return False
