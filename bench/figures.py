"""Measurements and reports: CPU seconds, the best of several runs, a JSON line at the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable


def best_cpu_s(work: Callable[[], object], repeats: int) -> float:
    """The least CPU time of several runs, which is that with the least interference."""
    best = float("inf")
    for _ in range(repeats):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return best


def report(bench: str, figures: dict[str, float]) -> None:
    """Print a line per figure, and all figures as JSON in the last line."""
    width = max(len(key) for key in figures)
    for key, value in figures.items():
        print(f"  {key:<{width}}  {value:>14,.3f}" if value < 1000 else f"  {key:<{width}}  {value:>14,.0f}")
    print(json.dumps({"bench": bench, "figures": {key: round(value, 4) for key, value in figures.items()}}))
