"""A process of its own that follows a log: `python follow.py FOLDER LSN` prints what it finds, up to there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.log.reader import LogReader
from tidemark.pgoutput.changes import ChangeBatch
from tidemark.values.types import Types


def follow(folder: Path, upto: Lsn) -> None:
    """Print a line for each look that found something new: how far it reaches, and its rows."""
    seen, reader = Lsn.ZERO, LogReader(folder)
    while seen < upto:
        reader.refresh()
        if reader.received <= seen:
            continue
        rows = []
        for batch in reader.read(seen, reader.received, Types()):
            assert isinstance(batch, ChangeBatch)
            values = zip(batch.commit_lsns.tolist(), batch.new[0].array.to_pylist(), strict=True)
            rows += [(lsn, batch.relation.name, value) for lsn, value in values]
        seen = reader.received
        sys.stdout.write(json.dumps([seen.value, rows]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    follow(Path(sys.argv[1]), Lsn(int(sys.argv[2])))
