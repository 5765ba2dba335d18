"""A lake that is made from a database, for tests: the writer beside the application, and PostgreSQL as the judge.

What a table holds is written down as PostgreSQL prints it, together with the position. Later the mirror, asked for that
position, must give the same rows.
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
from harness.mirrored import Mirrored, eventually, mirrored, receiving
from harness.printed import printed
from tidemark.clock import Boundary, Lsn
from tidemark.lake.reasons import NOT_YET
from tidemark.mirror.mirror import Mirror
from tidemark.mirror.moment import Moment
from tidemark.pipeline.apply.options import ApplyOptions
from tidemark.pipeline.apply.writer import LakeWriter
from tidemark.pipeline.fold.folder import Folded, Folder
from tidemark.postgres.session import Session
from tidemark.reads.names import parsed
from tidemark.values.cells import Column

ONLY = "only "
Row = tuple[str | None, ...]
Item = TypeVar("Item")

# At how many of the noted positions a mirror is read: None for all; the quick tier of tests sets it to a few.
READ_AT_MOST: int | None = None


@dataclass(frozen=True)
class Noted:
    """What PostgreSQL held at a position: for each table its columns and rows."""

    lsn: Lsn
    tables: dict[str, tuple[tuple[str, ...], Counter[Row]]]


@dataclass
class Lakeside:
    """A database, its log, and its lake."""

    database: Database
    mirror: Mirrored
    options: ApplyOptions
    spark: SparkSession
    notes: list[Noted] = field(default_factory=list)

    @contextmanager
    def writing(self) -> Iterator[LakeWriter]:
        """The lake's writer, until the context ends."""
        with LakeWriter(self.options, self.spark) as writer:
            yield writer

    def apply_all(self) -> Lsn:
        """Have everything committed so far in the lake, and known; up to where that is.

        Tables that are empty have begun then: it may take until a transaction of the server's own has ended.
        """
        with self.writing() as writer:
            writer.catch_up(self.position())
            eventually(lambda: _all_begun(writer), 120)
            upto = self.position()
            writer.catch_up(upto)
        return upto

    def position(self) -> Lsn:
        """Where the source is."""
        (lsn,) = self.database.admin("select pg_current_wal_insert_lsn()::text")[0]
        return Lsn.parse(lsn)

    def note(self, *tables: str) -> Noted:
        """Write down what tables hold now. Nobody else may be writing."""
        noted = Noted(self.position(), {table: by_postgres(self.database, table) for table in tables})
        self.notes.append(noted)
        return noted

    def run_and_note(self, statements: Sequence[str], *tables: str) -> None:
        """Run each statement as a transaction of its own, and note what the tables hold after it."""
        for statement in statements:
            self.database.run(statement)
            self.note(*tables)

    def open(self) -> Mirror:
        """The mirror, for reading."""
        return tidemark.open(self.options.lake, self.spark)

    def fold(self) -> list[Folded]:
        """Fold every table that has something to fold."""
        with Folder(self.options.lake, self.spark) as folder:
            return [folder.fold(table) for table in folder.foldable()]

    def require_noted(self) -> int:
        """At the noted positions the mirror gives what PostgreSQL had; how many were noted.

        And when all is folded it does so at every other one.
        """
        count = self.require_noted_now()
        self.fold()
        replace(self, notes=spread(self.notes)[::-2]).require_noted_now()
        return count

    def require_noted_now(self) -> int:
        """At the noted positions the mirror gives what PostgreSQL had; how many were noted."""
        mirror = self.open()
        for noted in spread(self.notes):
            moment = mirror.at(noted.lsn)
            for table, (columns, rows) in noted.tables.items():
                require_rows(read(moment, table), columns, rows, f"{table} at {noted.lsn}")
        return len(self.notes)


def read(moment: Moment, table: str) -> DataFrame:
    """A table of a mirror; `only table` for its own rows."""
    return moment.table(table.removeprefix(ONLY), only=table.startswith(ONLY))


def spread(notes: Sequence[Item]) -> list[Item]:
    """All of them, or as many as are to be read: the first, the last, and others evenly between."""
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
    """Received from, with every table that is empty now begun."""
    with receiving(side.mirror):
        side.mirror.catch_up()
        side.apply_all()
        yield side


def by_postgres(database: Database, table: str) -> tuple[tuple[str, ...], Counter[Row]]:
    """The columns of a table, and its rows as the server prints them."""
    with database.session() as session:
        return read_table(session, table)


def read_table(session: Session, table: str) -> tuple[tuple[str, ...], Counter[Row]]:
    """The same in a session, as its snapshot shows it, with the rows of its children unless it says `only table`."""
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
    """The columns of a DataFrame of ours, and its rows as the server would print them."""
    names = _names(frame)
    if not names:
        return (), Counter({(): frame.count()})
    plain = frame.select(*(_unguarded(frame, at, name) for at, name in enumerate(names)), *_texts(frame))
    table = plain.toArrow()
    columns = []
    for at in range(len(names)):
        exact = f"t{at}"
        text = table[exact].combine_chunks() if exact in table.column_names else None
        columns.append(printed(Column(table[f"v{at}"].combine_chunks(), text)))
    return tuple(names), Counter(zip(*columns, strict=True))


def require_rows(frame: DataFrame, columns: tuple[str, ...], rows: Counter[Row], what: str) -> None:
    """A DataFrame holds these rows, each as often."""
    found_columns, found = by_spark(frame)
    assert found_columns == columns, f"{what}: columns {found_columns}, and PostgreSQL has {columns}"
    missing, extra = rows - found, found - rows
    assert not missing, f"{what}: {missing.total()} of {rows.total()} missing, such as {next(iter(missing))}"
    assert not extra, f"{what}: {extra.total()} too many, such as {next(iter(extra))}"


def boundary(lsn: Lsn, *excluded: Lsn) -> Boundary:
    """A boundary without some commits."""
    return Boundary(lsn, frozenset(excluded))


def _all_begun(writer: LakeWriter) -> bool:
    """Whether no table waits to be seen empty; if one does, look once more."""
    if not any(history.last.reason.startswith(NOT_YET) for history in writer.tables.histories.values()):
        return True
    writer.look()
    writer.step()
    return False


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _names(frame: DataFrame) -> list[str]:
    """The table's own columns, without those that hold the text of others."""
    return [name for name in frame.columns if name.removesuffix("~text") not in set(frame.columns) - {name}]


def _unguarded(frame: DataFrame, at: int, name: str) -> Any:
    value = F.col(_quoted(name))
    if f"{name}~text" in frame.columns:
        value = F.when(F.col(_quoted(f"{name}~text")).isNull(), value)
    return value.alias(f"v{at}")


def _texts(frame: DataFrame) -> list[Any]:
    names = _names(frame)
    return [F.col(_quoted(f"{n}~text")).alias(f"t{at}") for at, n in enumerate(names) if f"{n}~text" in frame.columns]
