"""A process that clones, for tests that kill it.

Its arguments: source, target, name, folder, pg_bin, and then `follow` or `poll` or both.
KILL_AT="batch written:3"   kill -9 of itself, the third time that it comes to this point
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.killing import kill_at
from tidemark.pipeline import plan
from tidemark.postgres.capability import Mode
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.storage.fail_points import CloneFailPoint
from tidemark.target.clone import Clone
from tidemark.target.options import CloneOptions


def main() -> None:
    if point := os.environ.get("KILL_AT"):
        kill_at(CloneFailPoint(point.rpartition(":")[0]), int(point.rpartition(":")[2]))
    source, target, name, folder, pg_bin, *more = sys.argv[1:]
    plan.SHORTEST_INTERVAL_S = 0.1
    options = CloneOptions(
        Dsn(source),
        Dsn(target),
        MirrorNames(name),
        Path(folder),
        follows="follow" in more,
        pg_bin=Path(pg_bin),
        mode=Mode.POLL if "poll" in more else None,
        interval_s=0.1,
    )
    Clone(options, lambda: None).run()


if __name__ == "__main__":
    main()
