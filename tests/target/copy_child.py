"""A process that copies all tables, to be killed: prints a line for each part that it has recorded."""

from __future__ import annotations

import json
import sys

from harness.recorder import Recorder
from tests.target.copies import tables
from tidemark.pipeline.copy import parts
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot
from tidemark.schema.fingerprint import Fingerprint
from tidemark.target.copying import copy_tables


class Printing(Recorder):
    """Prints a line when a part is recorded, before it is committed."""

    def add(self, session: Session, table: Fingerprint, part: parts.Part, rows: int) -> None:
        super().add(session, table, part, rows)
        sys.stdout.write("recorded\n")
        sys.stdout.flush()


def main() -> None:
    source, target = map(Dsn, json.loads(sys.stdin.read()))
    parts.PART_BYTES = parts.LEAST_BYTES = 1 << 17
    with Session.open(source, "test", Timeouts(idle_in_transaction_s=0)) as session:
        session.begin()
        snapshot = SharedSnapshot.exported(source, session)
        list(copy_tables(None, snapshot, target, tables(session), 2, Printing(run="child")))


if __name__ == "__main__":
    main()
