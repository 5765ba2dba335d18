"""What a session of PostgreSQL saw, and what the mirror gives for it, as rows that can be compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from harness.database import Database
from harness.lake import Row, by_spark, read_table
from tests.mirror.parity import odd
from tidemark.clock import Boundary, Lsn
from tidemark.log.reader import LogReader
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.moment import Moment
from tidemark.postgres.session import Timeouts

HERE = "select pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text"
BALANCE = 2  # among the columns of a row, behind its table and its id


@dataclass(frozen=True, slots=True)
class Taken:
    """A session's snapshot, where it stood, and every row that it saw, behind the name of its table."""

    tables: tuple[str, ...]
    snapshot: str
    lsn: Lsn
    rows: Counter[Row]


def take(db: Database, tables: tuple[str, ...]) -> Taken:
    """Lock, which takes no snapshot and keeps TRUNCATE away; then note the snapshot, and read by it."""
    names = sql.SQL(", ").join(sql.Identifier("public", table) for table in tables)
    with db.session(timeouts=Timeouts(lock_s=60)) as session, session.transaction():
        session.execute(sql.SQL("lock table {} in access share mode").format(names), "locking")
        snapshot, lsn = session.row(HERE)
        rows: Counter[Row] = Counter()
        for table in tables:
            rows.update({(table, *row): count for row, count in read_table(session, f"public.{table}")[1].items()})
    return Taken(tables, snapshot, Lsn.parse(lsn), rows)


def read(moment: Moment, tables: Sequence[str]) -> Counter[Row]:
    """The same from the mirror: tables with the same columns in one query, the others one by one."""
    alike = [table for table in tables if table not in odd.TABLES]
    each = (f"select '{table}' as of_table, * from {table}" for table in alike)
    rows = by_spark(moment.sql(" union all ".join(each)))[1]
    for table in tables[len(alike) :]:
        rows.update({(table, *row): count for row, count in by_spark(moment.table(table))[1].items()})
    return rows


def total(rows: Counter[Row], accounts: str) -> int:
    """The money of all accounts."""
    return sum(int(row[BALANCE] or 0) * count for row, count in rows.items() if row[0] == accounts)


def difference(taken: Taken, found: Counter[Row]) -> str:
    """In which tables the mirror has other rows, and one of each kind; nothing where it has the same."""
    lacking, extra = taken.rows - found, found - taken.rows
    said = []
    for table in sorted({str(row[0]) for row in lacking | extra}):
        kinds = {"missing": lacking, "too many": extra}
        told = {kind: [row for row in rows.elements() if row[0] == table] for kind, rows in kinds.items()}
        some = (f"{len(rows)} {kind}, such as {_short(rows[0])}" for kind, rows in told.items() if rows)
        said.append(f"{table}: {'; '.join(some)}")
    return "; ".join(said)


def prefixes(log: LogReader, boundary: Boundary) -> list[Lsn]:
    """Every LSN at which a read could show the same commits, if one could: where nothing hidden is seen, and above.

    None if nothing visible lies above something hidden: then one of them does.
    """
    log.refresh()
    commits = [Lsn(int(lsn)) for lsn in log.commits()["lsn"]]
    above = [lsn for lsn in commits if boundary.floor < lsn <= boundary.lsn]
    return [boundary.floor, *above] if any(map(boundary.sees, above)) else []


def every_prefix_is_wrong(mirror: Mirror, taken: Taken, places: Sequence[Lsn]) -> bool:
    """Whether at none of these positions the mirror has what the session saw."""
    for lsn in reversed(places):
        with mirror.at(lsn) as moment:
            if read(moment, taken.tables) == taken.rows:
                return False
    return True


def _short(row: Row) -> str:
    return str(tuple(f"{cell[:20]}…" if cell is not None and len(cell) > 20 else cell for cell in row))
