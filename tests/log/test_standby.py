"""What a standby's sessions see, as the log tells it: under load, told by PostgreSQL itself and by the commit index."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from harness.database import Database, create_database
from harness.mirrored import Mirrored, eventually, mirrored, receiving
from harness.standby import standby_of
from tests.conftest import NEWEST, Start
from tidemark.clock import Boundary, Lsn, Snapshot
from tidemark.log.reader import LogReader
from tidemark.postgres.catalog_reading import replayed_by
from tidemark.postgres.session import Session

pytestmark = [pytest.mark.full, NEWEST]

WRITERS, LOOKS = 12, 1500
TELL = "insert into told select pg_current_xact_id()::text::bigint"
# All who committed have told their own ids, some in the name of a subtransaction that was the first to write.
TRANSACTIONS = (
    f"begin; {TELL}; commit",
    f"begin; savepoint s; {TELL}; commit",
    f"begin; savepoint s; {TELL}; rollback to s; {TELL}; commit",
    f"begin; {TELL}; rollback",
    f"begin; {TELL}; select pg_sleep(0.05); commit",
    f"begin; savepoint s; {TELL}; prepare transaction '{{gid}}'; commit prepared '{{gid}}'",
    f"begin; set local synchronous_commit = off; {TELL}; commit",
    "begin; " + "savepoint s; insert into noise values (1); " * 70 + f"{TELL}; commit",
)


@dataclass(frozen=True)
class Seen:
    """What one session saw: how many had committed, and the sum of their ids."""

    before: Lsn
    snapshot: Snapshot
    after: Lsn
    rows: int
    total: int


@contextmanager
def writing(db: Database) -> Iterator[None]:
    stop = threading.Event()

    def write(number: int) -> None:
        chance = random.Random(number)  # noqa: S311 - repeatable
        with db.connect() as session:
            for n in range(10**6):
                if stop.is_set():
                    return
                for statement in chance.choice(TRANSACTIONS).format(gid=f"{number}-{n}").split("; "):
                    session.execute(statement.encode())

    with ThreadPoolExecutor(WRITERS) as pool:
        writers = [pool.submit(write, number) for number in range(WRITERS)]
        try:
            yield
        finally:
            stop.set()
    for writer in writers:
        writer.result()


def look(session: Session) -> Seen:
    before = replayed_by(session)
    assert before is not None
    with session.transaction():
        snapshot, after = session.row("select pg_current_snapshot()::text, pg_last_wal_replay_lsn()::text")
        rows, total = session.row("select count(*), coalesce(sum(xid), 0)::bigint from public.told")
    return Seen(before, Snapshot.parse(snapshot), Lsn.parse(after), rows, total)


def answered(mirror: Mirrored, looks: Sequence[Seen]) -> list[tuple[Seen, Boundary]]:
    """The boundaries of the snapshots that determine one."""
    reader = LogReader(mirror.options.folder)
    found = [(seen, reader.boundary_on_standby(seen.snapshot, seen.before, seen.after)) for seen in looks]
    return [(seen, boundary) for seen, boundary in found if boundary is not None]


def is_telling(found: Sequence[tuple[Seen, Boundary]]) -> bool:
    """Whether some snapshots omit running transactions, and something was replayed while one of them was taken."""
    omitting = any(seen.snapshot.omits_running for seen, _ in found)
    return omitting and any(boundary.lsn != seen.before for seen, boundary in found)


def test_a_standbys_sessions_see_what_the_log_says(start: Start, tmp_path: Path) -> None:
    db = create_database(start())
    db.run("create table told (xid bigint)", "create table noise (n int)")
    mirror, looks = mirrored(db, tmp_path, "told"), list[Seen]()
    with standby_of(db) as there, receiving(mirror), writing(db), there.session() as session:

        def look_on() -> bool:
            looks.extend(look(session) for _ in range(LOOKS))
            mirror.catch_up()
            found = answered(mirror, looks)
            return len(found) > len(looks) / 100 and is_telling(found)

        eventually(look_on, 300)
    commits = LogReader(mirror.options.folder).commits()
    for seen, boundary in answered(mirror, looks):
        upto = int(np.searchsorted(commits["lsn"], np.uint64(boundary.lsn.value), side="right"))
        assert (upto, int(commits["xid"][:upto].sum())) == (seen.rows, seen.total), f"{seen} is not {boundary}"
