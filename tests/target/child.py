"""A process that clones, for tests that kill it.

Its arguments: source, target, name, folder, pg_bin, and then `follow` or `poll` or both.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tidemark.pipeline import plan
from tidemark.postgres.capability import Mode
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.target.clone import Clone, CloneOptions


def main() -> None:
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
