"""`make clone-parity`: at many LSNs, under load, a clone has the rows of its source, by the content of every table.

Sixteen writers change the source. A snapshot of it is taken at an exact LSN, the clone is held there, and all rows of
both are read and compared. Each pair of versions has a clone, which is stopped and continued in between.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bench.figures import report
from harness.database import add_roles, create_database
from harness.postgres import Server, installs, start_server
from tests.target.clones import clone_options, clones, followed
from tests.target.load import TABLES, database_with_tables, hostile, writing
from tidemark.errors import Conflict, DecodingFailed, TableChanged, TimedOut
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.session import Timeouts
from tidemark.postgres.shared import SharedSnapshot, require_same
from tidemark.schema.fingerprint import Fingerprint
from tidemark.target.compare.aligned import aligned_snapshots
from tidemark.target.options import CloneOptions

PAIRS = tuple(pair for pair in ((16, 18), (18, 16), (15, 18)) if set(pair) <= set(installs()))
WRITERS, PER_RUN, WAIT_S, START_OVERS = 16, 25, 120.0, 5
_FORMATS = {True: "as text", False: "in binary"}
PAUSE_S = 0.1  # of a writer after a transaction: without it they wait for each other, and commit less


@dataclass
class Parity:
    """How many snapshots were compared, and the tables that differed, each with its LSN.

    A snapshot is taken again if a table is truncated before it is read, which snapshots do not prevent, or locked, or
    if the session that reads it is the victim of a deadlock with the writers.
    """

    snapshots: int = 0
    retaken: int = 0
    started_over: int = 0
    rows: int = 0
    mismatches: list[str] = field(default_factory=list)

    def add(self, lsn: str, there: Mapping[str, list[str]], here: Mapping[str, list[str]]) -> None:
        """Compare the rows of both servers."""
        self.snapshots += 1
        for name, rows in there.items():
            missing, extra = Counter(rows) - Counter(here[name]), Counter(here[name]) - Counter(rows)
            self.rows += len(rows)
            if missing or extra:
                self.mismatches.append(f"{name} at {lsn}: missing {dict(missing)}, extra {dict(extra)}")


@contextmanager
def servers(pair: tuple[int, int]) -> Iterator[tuple[Server, Server]]:
    """Start a server of each of two versions."""
    with ExitStack() as held:
        started = []
        for major in pair:
            server = start_server(installs()[major])
            held.callback(server.remove)
            add_roles(server)
            started.append(server)
        yield started[0], started[1]


def compared(
    before: Server,
    after: Server,
    folder: Path,
    snapshots: int,
    writers: int = WRITERS,
    pause_s: float = 0.0,
    *,
    ranges: bool = True,
) -> Parity:
    """Clone a database under load, and compare it at so many LSNs while it follows.

    The stream is sent as text if the tables have ranges, and in binary otherwise.
    """
    found = Parity()
    for source in database_with_tables(before, ranges=ranges):
        with source.connect() as connection:
            connection.autocommit = True
            hostile(connection, Random(before.install.major), 200)  # noqa: S311 - to be repeated
        with writing(source, writers, pause_s):
            while found.snapshots < snapshots:
                target = create_database(after)
                options = clone_options(source, target, folder / str(found.started_over))
                try:
                    _compare(options, found, snapshots)
                except DecodingFailed:
                    # PostgreSQL 15 can create a slot that no session can decode while there are other slots.
                    if found.started_over == START_OVERS or before.install.major > 15:
                        raise
                    found.started_over += 1
                    source.admin(
                        f"select pg_drop_replication_slot('{options.names.slot}')",
                        f"drop publication {options.names.publication}",
                    )
                finally:
                    target.drop()
    return found


def _compare(options: CloneOptions, found: Parity, snapshots: int) -> None:
    while found.snapshots < snapshots:
        with followed(options):
            (clone,) = clones(options)
            upto = min(found.snapshots + PER_RUN, snapshots)
            while found.snapshots < upto:
                both = aligned_snapshots(options.source, options.target, clone, Timeouts(), WAIT_S)
                with both as taken:
                    try:
                        there, here = contents(taken.source), contents(taken.target)
                    except (TableChanged, TimedOut, Conflict):
                        found.retaken += 1
                    else:
                        found.add(f"{taken.lsn}", there, here)


def contents(snapshot: SharedSnapshot) -> dict[str, list[str]]:
    """The rows of all tables as of a snapshot; raises TableChanged if one was truncated since."""
    with snapshot.session("parity") as session:
        for table in read_catalog(session).tables:
            if table.name in TABLES:
                require_same(session, Fingerprint.of(table, ()))
        return {name: sorted(row for (row,) in session.rows(f"select t::text from public.{name} t")) for name in TABLES}


def main() -> None:
    """Compare a number of snapshots over all pairs of versions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshots", type=int, default=2000)
    wanted, totals = parser.parse_args().snapshots, Parity()
    cases = [(pair, ranges) for pair in PAIRS for ranges in (True, False)]
    for number, (pair, ranges) in enumerate(cases):
        share = wanted * (number + 1) // len(cases) - wanted * number // len(cases)
        with servers(pair) as both, tempfile.TemporaryDirectory() as folder:
            found = compared(*both, Path(folder), share, pause_s=PAUSE_S, ranges=ranges)
        how = f"{pair[0]} to {pair[1]}, {_FORMATS[ranges]}"
        print(f"{how}: {found.snapshots} snapshots, {found.retaken} taken again, {found.mismatches}")  # noqa: T201
        totals.snapshots += found.snapshots
        totals.retaken += found.retaken
        totals.started_over += found.started_over
        totals.rows += found.rows
        totals.mismatches += found.mismatches
    figures = {"snapshots": totals.snapshots, "retaken": totals.retaken, "started_over": totals.started_over}
    report("clone-parity", {**figures, "rows": totals.rows, "mismatches": len(totals.mismatches)})
    sys.exit(bool(totals.mismatches))


if __name__ == "__main__":
    main()
