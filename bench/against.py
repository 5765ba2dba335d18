"""`make bench-against COMMIT=…`: benchmarks of this checkout beside those of an earlier commit, in one run.

BENCHES= names the benchmarks (all that both have), and ROUNDS= how often each runs in each tree; the trees take turns
in going first. ROWS= and the like are passed on. The earlier commit runs with the installed libraries, so all that its
`requirements.lock` names must be installed in the same versions. For each figure, the medians of both and
`…_new_over_old`, their ratio.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.figures import report

COMMIT, ROUNDS = os.environ.get("COMMIT", "HEAD"), int(os.environ.get("ROUNDS", "3"))
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
    """Run a benchmark of a tree; its modules come before the installed ones."""
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{bench}"],
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
