"""`make bench-against COMMIT=…`: benchmarks of this checkout beside those of an earlier commit, in one run.

BENCHES= names the benchmarks (all that both have), and ROUNDS= how often each runs in each tree; the trees take turns
in going first. ROWS= and the like are passed on, and SET="receive.REPEATS=1 apply.BIG=200000" sets constants of the
benchmarks in both trees, so that a run can be short. The earlier commit runs with the installed libraries, so all that
its `requirements.lock` names must be installed in the same versions. For each figure, the medians of both and
`…_new_over_old`, their ratio.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.figures import report

COMMIT, ROUNDS = os.environ.get("COMMIT", "HEAD"), int(os.environ.get("ROUNDS", "3"))
SET = os.environ.get("SET", "").split()
HERE = Path(__file__).parent.parent
ALL = ("apply", "beside", "copy", "decode", "fold", "fresh", "poll", "read", "receive")


def main() -> None:
    """Check the earlier commit out beside this one, and run each benchmark alternately."""
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "before"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", before, COMMIT], cwd=HERE, check=True)
        try:
            if others := _pinned(before) - _pinned(HERE):
                raise SystemExit(f"{COMMIT} needs other libraries than those installed: {', '.join(sorted(others))}")
            _require_constants({"old": before, "new": HERE})
            figures: dict[str, float] = {}
            for bench in os.environ.get("BENCHES", "").split() or ALL:
                figures |= _compared(bench, {"old": before, "new": HERE})
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", before], cwd=HERE, check=True)
    report("against", figures)


def _pinned(tree: Path) -> set[str]:
    """The libraries that a tree's lock file names, with their versions."""
    lines = (tree / "requirements.lock").read_text().splitlines()
    return {line.split()[0] for line in lines if "==" in line}


def _require_constants(trees: dict[str, Path]) -> None:
    """Each constant of SET is an integer that exists in both trees."""
    for setting in SET:
        constant, _, value = setting.partition("=")
        bench, _, name = constant.partition(".")
        for tree in trees.values():
            module = tree / "bench" / f"{bench}.py"
            if not (
                value.isdigit()
                and module.is_file()
                and re.search(rf"^[A-Z_, ]*\b{name}\b.* = ", module.read_text(), re.M)
            ):
                raise SystemExit(f"SET: {setting!r} is not BENCH.CONSTANT=NUMBER of a constant in {module}")


def _compared(bench: str, trees: dict[str, Path]) -> dict[str, float]:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in trees}
    for turn in range(ROUNDS):
        for name in sorted(trees, reverse=bool(turn % 2)):
            found[name].append(_figures(bench, trees[name]))
            print(f"  {bench}, {name}: {json.dumps(found[name][-1])}", flush=True)
    old, new = (
        {key: statistics.median(each[key] for each in found[name]) for key in found[name][0]} for name in ("old", "new")
    )
    compared: dict[str, float] = {}
    for key in [key for key in new if old.get(key)]:
        compared |= {
            f"{bench}_{key}_old": old[key],
            f"{bench}_{key}_new": new[key],
            f"{bench}_{key}_new_over_old": new[key] / old[key],
        }
    return compared


def _figures(bench: str, tree: Path) -> dict[str, float]:
    """Run a benchmark of a tree, with the constants of SET; its modules come before the installed ones."""
    constants = [f"bench.{setting}" for setting in SET if setting.startswith(f"{bench}.")]
    done = subprocess.run(
        [sys.executable, "-c", "; ".join((f"import bench.{bench}", *constants, f"bench.{bench}.main()"))],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])["figures"]
    return figures


if __name__ == "__main__":
    main()
