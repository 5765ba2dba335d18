"""Memory and CPU time of processes, such as Spark's JVM and its Python workers, as Linux reports them."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")


def jvm() -> int:
    """The PID of the JVM that this process started."""
    (found,) = (pid for pid in _children(os.getpid()) if _name(pid) == "java")
    return found


def workers() -> list[int]:
    """The PIDs of the JVM's Python workers, which are all forked by one process."""
    return [worker for daemon in _children(jvm()) for worker in _children(daemon)]


def forget_peak(pid: int) -> None:
    """Reset the peak of resident memory."""
    (PROC / str(pid) / "clear_refs").write_text("5")


def peak_mb(pid: int) -> float:
    """Peak resident memory, shared pages included."""
    status = (PROC / str(pid) / "status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def resident_mb(pid: int) -> float:
    """Resident memory, shared pages included."""
    status = (PROC / str(pid) / "status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def tree_cpu_s(pid: int) -> float:
    """CPU time of a process and all that it started, also of those that have ended."""
    return _cpu_s(pid) + sum(tree_cpu_s(each) for each in _children(pid))


def children(pid: int) -> dict[int, str]:
    """The child processes of a process: the name of the program by PID."""
    return {each: _name(each) for each in _children(pid)}


def _children(pid: int) -> list[int]:
    return [int(each.name) for each in PROC.glob("[0-9]*") if _parent(each) == pid]


def _cpu_s(pid: int) -> float:
    """CPU time of a process, and of its children that have ended."""
    try:
        found = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0  # the process has ended
    return sum(map(int, found[11:15])) / os.sysconf("SC_CLK_TCK")


def _parent(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None  # the process has ended


def _name(pid: int) -> str:
    return (PROC / str(pid) / "comm").read_text().strip()
