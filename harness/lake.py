"""A lake that is written from a database, for tests: a writer beside the application, PostgreSQL as the reference.

The contents of a table are recorded as PostgreSQL prints them, together with the LSN. Later the mirror must return the
same rows at that LSN.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import tidemark
from harness.database import Database
from harness.local import by_duckdb
from harness.mirrored import Mirrored, eventually, mirrored, receiving
from harness.printed import printed
from tidemark.clock import Boundary, Lsn
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.moment import Moment
from tidemark.pipeline.apply.applier import StreamApplier
from tidemark.pipeline.apply.lake_applier import lake_applier
from tidemark.pipeline.apply.options import ApplyOptions
from tidemark.pipeline.fold.compactor import Compactor, Folded
from tidemark.postgres.session import Session
from tidemark.reads.names import parsed
from tidemark.schema.reasons import NOT_YET
from tidemark.values.cells import DecodedColumn

ONLY = "only "
Row = tuple[str | None, ...]
Item = TypeVar("Item")

# The number of recorded LSNs at which a mirror is read; None for all. The quick tier of tests sets a small number.
READ_AT_MOST: int | None = None


@dataclass(frozen=True)
class Noted:
    """The contents of tables in PostgreSQL at an LSN: the columns and rows of each."""

    lsn: Lsn
    tables: dict[str, tuple[tuple[str, ...], Counter[Row]]]


@dataclass
class Lakeside:
    """A database, its log and its lake."""

    database: Database
    mirror: Mirrored
    options: ApplyOptions
    spark: SparkSession
    notes: list[Noted] = field(default_factory=list)

    @contextmanager
    def writing(self) -> Iterator[StreamApplier]:
        """Open the lake's writer until the context ends."""
        with lake_applier(self.options, self.spark) as writer:
            yield writer

    def apply_all(self) -> Lsn:
        """Apply everything committed so far, definitions included; return the LSN up to which that is done.

        Empty tables are readable then, which may have to wait for the end of one of the server's own transactions.
        """
        with self.writing() as writer:
            writer.catch_up(self.position())
            eventually(lambda: _all_begun(writer), 120)
            upto = self.position()
            writer.catch_up(upto)
        return upto

    def position(self) -> Lsn:
        """The WAL insert LSN of the source."""
        (lsn,) = self.database.admin("select pg_current_wal_insert_lsn()::text")[0]
        return Lsn.parse(lsn)

    def note(self, *tables: str) -> Noted:
        """Record the contents of tables; no other session may write meanwhile."""
        noted = Noted(self.position(), {table: by_postgres(self.database, table) for table in tables})
        self.notes.append(noted)
        return noted

    def run_and_note(self, statements: Sequence[str], *tables: str) -> None:
        """Run each statement in its own transaction, and record the contents of the tables after it."""
        for statement in statements:
            self.database.run(statement)
            self.note(*tables)

    def open(self) -> Mirror:
        """Open the mirror for reading."""
        return tidemark.open(self.options.lake, self.spark)

    def fold(self) -> list[Folded]:
        """Fold every table that has changes to fold."""
        with Compactor(self.options.lake, self.spark) as compactor:
            return [compactor.fold(table) for table in compactor.foldable()]

    def require_noted(self) -> int:
        """Require that the mirror returns the recorded rows at the recorded LSNs; return their number.

        Then fold all tables, and check every other record again.
        """
        count = self.require_noted_now()
        self.fold()
        replace(self, notes=spread(self.notes)[::-2]).require_noted_now()
        return count

    def require_noted_now(self) -> int:
        """Require that the mirror returns the recorded rows at the recorded LSNs; return their number."""
        mirror = self.open()
        for noted in spread(self.notes):
            moment = mirror.at(noted.lsn)
            for table, (columns, rows) in noted.tables.items():
                require_read(moment, table, columns, rows)
        return len(self.notes)


def read(moment: Moment, table: str) -> DataFrame:
    """A table of a mirror; `only table` for its own rows, without those of child tables."""
    return moment.table(table.removeprefix(ONLY), only=table.startswith(ONLY))


def spread(notes: Sequence[Item]) -> list[Item]:
    """All items, or `READ_AT_MOST` of them: the first, the last, and others evenly between."""
    most = READ_AT_MOST
    if most is None or len(notes) <= most:
        return list(notes)
    return [notes[at * (len(notes) - 1) // (most - 1)] for at in range(most)]


def lakeside(database: Database, folder: Path, spark: SparkSession, *tables: str, **options: Any) -> Lakeside:
    """Publish tables; nothing is received or applied yet."""
    mirror = mirrored(database, folder, *tables, **options)
    apply = ApplyOptions(mirror.options.source, mirror.options.folder, folder / "lake", mirror.options.names)
    return Lakeside(database, mirror, apply, spark)


@contextmanager
def following(side: Lakeside) -> Iterator[Lakeside]:
    """Run a receiver until the context ends; tables that are empty now are readable."""
    with receiving(side.mirror):
        side.mirror.catch_up()
        side.apply_all()
        yield side


def by_postgres(database: Database, table: str) -> tuple[tuple[str, ...], Counter[Row]]:
    """The columns of a table, and its rows as the server prints them."""
    with database.session() as session:
        return read_table(session, table)


def read_table(session: Session, table: str) -> tuple[tuple[str, ...], Counter[Row]]:
    """The columns and rows of a table in a session's snapshot, with those of child tables unless `only table`."""
    only = sql.SQL("only {}" if table.startswith(ONLY) else "{}")
    named = only.format(sql.Identifier(*parsed(table.removeprefix(ONLY))))
    columns = session.connection.execute(sql.SQL("select * from {} limit 0").format(named)).description or []
    names = tuple(column.name for column in columns)
    shown = [
        sql.SQL("case when {0} is distinct from null then format('%s', {0}) end").format(sql.Identifier(n))
        for n in names
    ]
    query = sql.SQL("select {} from {}").format(sql.SQL(", ").join(shown), named)
    return names, Counter(session.connection.execute(query).fetchall())


def by_spark(frame: DataFrame) -> tuple[tuple[str, ...], Counter[Row]]:
    """The columns of a mirror's DataFrame, and its rows as the server would print them."""
    names = _names(frame)
    if not names:
        return (), Counter({(): frame.count()})
    plain = frame.select(*(_unguarded(frame, at, name) for at, name in enumerate(names)), *_texts(frame))
    table = plain.toArrow()
    columns = []
    for at in range(len(names)):
        exact = f"t{at}"
        text = table[exact].combine_chunks() if exact in table.column_names else None
        columns.append(printed(DecodedColumn(table[f"v{at}"].combine_chunks(), text)))
    return tuple(names), Counter(zip(*columns, strict=True))


def require_read(moment: Moment, table: str, columns: tuple[str, ...], rows: Counter[Row]) -> None:
    """Require that a table of a mirror has exactly these columns and rows, whichever engine reads it."""
    what = f"{table} at {moment.lsn}"
    require_rows(read(moment, table), columns, rows, what)
    if not columns:
        return  # the local engine refuses a table without columns
    found = by_duckdb(moment, table.removeprefix(ONLY), only=table.startswith(ONLY))
    _require_equal(found, (columns, rows), f"{what}, by DuckDB")


def require_rows(frame: DataFrame, columns: tuple[str, ...], rows: Counter[Row], what: str) -> None:
    """Require that a DataFrame has exactly these columns and rows, duplicates included."""
    _require_equal(by_spark(frame), (columns, rows), what)


def _require_equal(
    found_here: tuple[tuple[str, ...], Counter[Row]], wanted: tuple[tuple[str, ...], Counter[Row]], what: str
) -> None:
    (found_columns, found), (columns, rows) = found_here, wanted
    assert found_columns == columns, f"{what}: columns {found_columns}, and PostgreSQL has {columns}"
    missing, extra = rows - found, found - rows
    assert not missing, f"{what}: {missing.total()} of {rows.total()} missing, such as {next(iter(missing))}"
    assert not extra, f"{what}: {extra.total()} too many, such as {next(iter(extra))}"


def boundary(lsn: Lsn, *excluded: Lsn) -> Boundary:
    """A boundary that excludes some commits."""
    return Boundary(lsn, frozenset(excluded))


def _all_begun(writer: StreamApplier) -> bool:
    """Whether no table waits for the check that it is empty; if one does, read the catalog again."""
    if not any(history.last.reason.startswith(NOT_YET) for history in writer.tables.histories.values()):
        return True
    writer.read_catalog()
    writer.step()
    return False


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _names(frame: DataFrame) -> list[str]:
    """The table's own columns, without text fallbacks."""
    return [name for name in frame.columns if name.removesuffix("~text") not in set(frame.columns) - {name}]


def _unguarded(frame: DataFrame, at: int, name: str) -> Any:
    value = F.col(_quoted(name))
    if f"{name}~text" in frame.columns:
        value = F.when(F.col(_quoted(f"{name}~text")).isNull(), value)
    return value.alias(f"v{at}")


def _texts(frame: DataFrame) -> list[Any]:
    names = _names(frame)
    return [F.col(_quoted(f"{n}~text")).alias(f"t{at}") for at, n in enumerate(names) if f"{n}~text" in frame.columns]
