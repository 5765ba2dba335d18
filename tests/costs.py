"""What each test costs, as a pytest plugin: `pytest --costs costs.jsonl` appends one line of JSON per test.

CPU time is that of the process and of all its descendants: servers, the JVM, Spark's Python workers, commands. A
process that ends takes its time out of the sum unless its parent waits for it, so a single figure can be too low, even
negative; sums over a module are right within a few seconds. `python -m tests.costs costs.jsonl` ranks modules.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from pyspark import SparkContext

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--costs FILE`."""
    parser.addoption("--costs", type=Path, help="append the seconds, CPU seconds and Spark jobs of each test to a file")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measure a test with its fixtures."""
    file: Path | None = item.config.getoption("costs")
    if file is None:
        return (yield)
    before = _so_far()
    result = yield
    wall, cpu, jobs = (after - then for after, then in zip(_so_far(), before, strict=True))
    line = {"test": item.nodeid, "seconds": round(wall, 2), "cpu_s": round(cpu, 2), "spark_jobs": jobs}
    with file.open("a") as out:
        out.write(json.dumps(line) + "\n")
    return result


def _so_far() -> tuple[float, float, int]:
    return time.monotonic(), cpu_s(), spark_jobs()


def cpu_s() -> float:
    """CPU seconds used so far by this process, its descendants, and the children they have waited for."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    used: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        children[int(fields[1])].append(int(folder.name))
        used[int(folder.name)] = sum(map(int, fields[11:15]))
    total, left = 0, [os.getpid()]
    while left:
        pid = left.pop()
        total += used.get(pid, 0)
        left += children[pid]
    return total / _TICKS_PER_S


def spark_jobs() -> int:
    """Jobs run so far by this process's Spark context."""
    context = SparkContext._active_spark_context
    return int(context._jsc.sc().dagScheduler().numTotalJobs()) if context is not None else 0


def main() -> None:
    """Print modules by CPU time, most first."""
    modules: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0.0, 0.0, 0])
    for name in sys.argv[1:]:
        for line in Path(name).read_text().splitlines():
            test = json.loads(line)
            for place, value in enumerate((1, test["seconds"], test["cpu_s"], test["spark_jobs"])):
                modules[test["test"].partition("::")[0]][place] += value
    print(f"{'cpu_s':>8}{'seconds':>9}{'jobs':>6}{'tests':>6}  module")  # noqa: T201
    for module, (tests, wall, cpu, jobs) in sorted(modules.items(), key=lambda each: -each[1][2]):
        print(f"{cpu:8.0f}{wall:9.0f}{jobs:6.0f}{tests:6.0f}  {module}")  # noqa: T201


if __name__ == "__main__":
    main()
