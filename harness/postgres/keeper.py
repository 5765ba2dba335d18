"""The keeper: a process that outlives its parent just long enough to clean up after it.

It has the read end of a pipe whose write end only the parent has. End-of-file means that the parent has ended, for any
reason: then every server below the workspace is stopped and the workspace is removed. It runs in its own session, so
that Ctrl-C or a kill of the parent's process group does not reach it.

    python keeper.py WORKSPACE        (needs nothing but the standard library)
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path


def stop_servers(workspace: Path, patience_s: float) -> None:
    """Stop each postmaster and each process with a `pid` file below `workspace`; SIGKILL after `patience_s`."""
    files = (*workspace.glob("*/data/postmaster.pid"), *workspace.glob("*/pid"))
    pids = {pid for file in files if (pid := _first_line(file))}
    for pid in pids:
        _signal(pid, signal.SIGQUIT)
    deadline = time.monotonic() + patience_s
    while pids and time.monotonic() < deadline:
        pids = {pid for pid in pids if _running(pid)}
        time.sleep(0.02)
    for pid in pids:
        _signal(pid, signal.SIGKILL)


def _first_line(file: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(file.read_text().splitlines()[0])
    return 0


def _running(pid: int) -> bool:
    """Whether the process exists and is not a zombie that its parent has not waited for yet."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def main() -> None:
    """Wait for end-of-file, then clean up."""
    workspace = Path(sys.argv[1])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    stop_servers(workspace, patience_s=6)
    shutil.rmtree(workspace, ignore_errors=True)


if __name__ == "__main__":
    main()
