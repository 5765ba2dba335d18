"""`make parity`: what sessions of PostgreSQL saw under load, and whether the mirror, asked for it, gives the same.

Writers change tables in every way, in bursts, and one has long transactions all the time. Meanwhile the mirror folds,
is vacuumed, copies anew and is ended, and some commits are logged long before they are seen. Readers note a snapshot
and read whole tables by it; between bursts, when there is time for it, the mirror is asked. A snapshot that it refuses,
as one that a copy or the window cuts off, counts as refused and not as compared.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import tidemark
from bench.figures import report
from harness.database import Database, add_roles, create_database
from harness.postgres import Install, installs, start_server
from tests.mirror.parity import odd
from tests.mirror.parity.following import Following, chores, commits_that_hang, following
from tests.mirror.parity.judge import Taken, difference, every_prefix_is_wrong, prefixes, read, take, total
from tests.mirror.parity.odd import writing_oddly
from tests.pipeline.sync.load import ACCOUNTS, Manner, create, writing
from tidemark.clock import Lsn
from tidemark.errors import NotAnswerable
from tidemark.log.reader import LogReader
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.moment import Moment
from tidemark.spark import SparkOptions, spark_session

ACCOUNT, CHANGED = "accounts", ("keyed", "bag")
KEYED = (ACCOUNT, "keyed")
TABLES = (ACCOUNT, *CHANGED)
ODD = (ACCOUNT, *odd.TABLES)
MONEY = ACCOUNTS * (ACCOUNTS + 1) // 2  # each has its number at first
KEYS, PAUSE_S, HELD_S = 120, 0.15, 3.0
READERS, BURST, BETWEEN_S = 3, 10, 0.1  # snapshots of each reader in a burst
SHOWN, FEW_PREFIXES = 2, 12
STUCK_S = 180.0
KEYLESS_EVERY, ODD_EVERY, TOLD_EVERY = 5, 3, 150
WIDENED_AFTER = 3  # bursts
# Small files and many plans: what is read in parts, or planned anew while it runs, takes longer.
SPARK = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.shuffle.partitions": "1",
}
At = Callable[[Mirror, Taken], Moment]


def manner(synchronous_commit: str, held_s: float = 0.0, *, empties: bool = False) -> Manner:
    """A writer who waits for nobody for long."""
    settings = f"set synchronous_commit = {synchronous_commit}; set lock_timeout = '500ms'"
    return Manner(settings, KEYS, max(PAUSE_S, held_s), held_s, empties, ACCOUNT)


WRITERS = (*[manner("on")] * 3, *[manner("off", empties=True)] * 7, *[manner("local")] * 5)
LONG = (manner("off", HELD_S),)


def as_the_session_saw(mirror: Mirror, taken: Taken) -> Moment:
    """The rule: what the snapshot does not see is not seen."""
    return mirror.at(snapshot=taken.snapshot, lsn=taken.lsn)


def by_its_lsn_alone(mirror: Mirror, taken: Taken) -> Moment:
    """The plain rule: all that is committed up to there is seen."""
    return mirror.at(taken.lsn)


@dataclass
class Findings:
    """What a run has found so far. `shown` are snapshots for which every LSN is wrong, looked at one by one."""

    snapshots: int = 0
    keyless: int = 0
    odd: int = 0
    without_plain_lsn: int = 0
    shown: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    mismatches: list[str] = field(default_factory=list)

    def complaints(self) -> list[str]:
        """What is wrong: with the mirror, or with a load that is too gentle to tell."""
        said = self.mismatches[:5]
        if self.refused.total() > self.snapshots / 5:
            said.append(f"too many were refused: {self.refused.most_common(3)}")
        if not (self.without_plain_lsn and self.shown):
            said.append("for no snapshot was every LSN wrong: the load is too gentle")
        return said

    def figures(self) -> dict[str, int]:
        """As they are reported."""
        return {
            "snapshots": self.snapshots,
            "with_keyless_table": self.keyless,
            "with_odd_tables": self.odd,
            "without_plain_lsn": self.without_plain_lsn,
            "every_lsn_wrong": self.shown,
            "refused": self.refused.total(),
            "mismatches": len(self.mismatches),
        }


@dataclass
class Parity:
    """A database under load and its mirror, compared as often as one asks.

    The table without a key, which takes longest to read, is read by one snapshot of `keyless_every`, the odd ones by
    one of `odd_every`, and the accounts alone by some others.
    """

    database: Database
    mirror: Following
    at: At = as_the_session_saw
    keyless_every: int = KEYLESS_EVERY
    odd_every: int = ODD_EVERY
    found: Findings = field(default_factory=Findings)
    bursts: int = 0
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def compare(self, snapshots: int) -> Findings:
        """Until so many more snapshots are compared, a burst and a chore after the other."""
        wanted = self.found.snapshots + snapshots
        doing = chores(self.database, self.mirror, (*TABLES, *odd.TABLES))
        mirror = tidemark.open(self.mirror.options.lake, self.mirror.spark)
        log = LogReader(self.mirror.options.log_folder)
        with ThreadPoolExecutor(READERS) as pool:
            while (still := wanted - self.found.snapshots) > 0:
                next(doing)()
                taken = self._burst(pool, min(BURST, -(-still // READERS)))
                self._await(mirror, max(each.lsn for each in taken))
                list(pool.map(partial(self._compare, mirror, log), taken))
        return self.found

    def _burst(self, pool: ThreadPoolExecutor, each: int) -> list[Taken]:
        """What several readers see while everybody writes."""
        self.bursts += 1
        if self.bursts == WIDENED_AFTER:
            self.database.run(odd.WIDENED)
        with (
            writing_oddly(self.database, self.bursts),
            writing(self.database, *CHANGED, writers=len(WRITERS), seed=self.bursts, manners=WRITERS),
            commits_that_hang(self.database.server),
        ):
            return [taken for some in pool.map(self._take, [each] * READERS) for taken in some]

    def _take(self, snapshots: int) -> list[Taken]:
        taken = []
        for n in range(snapshots):
            time.sleep(BETWEEN_S)
            fewer = ODD if n % self.odd_every == 1 else KEYED if n % 2 else (ACCOUNT,)
            taken.append(take(self.database, fewer if n % self.keyless_every else TABLES))
        return taken

    def _await(self, mirror: Mirror, lsn: Lsn) -> None:
        """Until that position is known, which is told when something is committed: what is refused then is for good."""
        deadline = time.monotonic() + STUCK_S
        while mirror._opened.view().answerable < lsn:
            self.mirror.require_well()
            assert time.monotonic() < deadline, f"{lsn} is not reached; the mirror said {self.mirror.said[-9:]}"
            self.database.run(f"update {ACCOUNT} set v = 'and on' where id = {ACCOUNTS}")
            time.sleep(0.5)

    def _compare(self, mirror: Mirror, log: LogReader, taken: Taken) -> None:
        try:
            with self.at(mirror, taken) as moment:
                rows = read(moment, taken.tables)
                places = prefixes(log, moment.boundary)
                what = difference(taken, rows)
                shows = not what and 0 < len(places) <= FEW_PREFIXES and self.found.shown < SHOWN
        except NotAnswerable as error:
            with self._one_at_a_time:
                self.found.refused[error.message] += 1
            return
        if (money := total(rows, ACCOUNT)) != MONEY:
            what = f"{what}; the accounts have {money} and not {MONEY}"
        shown = shows and self._is_shown(mirror, taken, places)
        with self._one_at_a_time:
            self.found.snapshots += 1
            self.found.keyless += taken.tables == TABLES
            self.found.odd += taken.tables == ODD
            self.found.without_plain_lsn += bool(places)
            self.found.shown += shown
            if what:
                self.found.mismatches.append(f"{taken.snapshot} at {moment.boundary}: {what}")

    def _is_shown(self, mirror: Mirror, taken: Taken, places: list[Lsn]) -> bool:
        try:
            return every_prefix_is_wrong(mirror, taken, places)
        except NotAnswerable:
            return False


@contextmanager
def parity(
    db: Database, folder: Path, spark: SparkSession, at: At = as_the_session_saw, **options: Any
) -> Iterator[Parity]:
    """A database whose writers write, and whose mirror follows, until the context ends."""
    create(db, *CHANGED, rows=KEYS // 2)
    create(db, ACCOUNT, rows=ACCOUNTS)
    db.run(*odd.CREATE)
    with (
        following(db, folder, spark, (*TABLES, *odd.TABLES), **options) as mirror,
        writing(db, *CHANGED, writers=len(LONG), manners=LONG),
    ):
        yield Parity(db, mirror, at)


def compared_on(install: Install, spark: SparkSession, snapshots: int) -> Findings:
    """A run on a server of its own."""
    server = start_server(install)
    try:
        add_roles(server)
        with tempfile.TemporaryDirectory() as folder, parity(create_database(server), Path(folder), spark) as run:
            while (still := snapshots - run.found.snapshots) > 0:
                run.compare(min(still, TOLD_EVERY))
                sys.stdout.write(f"{install.major}: {run.found.figures()}\n")
                sys.stdout.flush()
            return run.found
    finally:
        server.remove()


def main() -> None:
    """Compare on the newest server and on the oldest, half of the snapshots each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--snapshots", type=int, default=3000)
    wanted = parser.parse_args().snapshots
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = spark_session(SparkOptions(master="local[3]", conf=quiet | SPARK))
    spark.sparkContext.setLogLevel("ERROR")
    servers = list(installs().values())
    found = [compared_on(install, spark, -(-wanted // 2)) for install in (servers[-1], servers[0])]
    spark.stop()
    sums = Counter[str]()
    for each in found:
        sums.update(each.figures())
    figures: dict[str, float] = {**sums}
    report("parity", figures)
    sys.exit("\n".join(why for each in found for why in each.complaints()) or 0)


if __name__ == "__main__":
    main()
