"""A process that clones, for tests that kill it. Its arguments: source, target, name, folder, pg_bin, and `follow`."""

from __future__ import annotations

import sys
from pathlib import Path

from tidemark.postgres.dsn import Dsn
from tidemark.postgres.names import MirrorNames
from tidemark.target.clone import Clone, CloneOptions


def main() -> None:
    source, target, name, folder, pg_bin, *follow = sys.argv[1:]
    options = CloneOptions(
        Dsn(source), Dsn(target), MirrorNames(name), Path(folder), follows=bool(follow), pg_bin=Path(pg_bin)
    )
    Clone(options, lambda: None).run()


if __name__ == "__main__":
    main()
