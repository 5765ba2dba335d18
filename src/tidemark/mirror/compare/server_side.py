"""The rows of a table on a server, source or target; PostgreSQL computes the digests, so only sums are transferred.

`ComparedTable` is a table as both sides read it: its columns, its key, and the size of the sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from psycopg import sql

from tidemark.mirror.compare.digest import WHOLE, LocatedDigest, Range, Row
from tidemark.postgres.session import Session, Timeouts
from tidemark.postgres.shared import SharedSnapshot, require_same
from tidemark.postgres.sqlstate import translated
from tidemark.reads.canonical import ComparedColumn, source_row
from tidemark.reads.digests import source_md5, source_sums
from tidemark.schema.fingerprint import Fingerprint

# The table and all tables below it in the session's snapshot. The planner uses the current children of a parent, so it
# may omit a child that was removed since the snapshot, or include one that was added.
_TREE = """
    with recursive tree(oid) as (
        select %s::oid
        union select i.inhrelid from pg_inherits i join tree on i.inhparent = tree.oid
    )
    select n.nspname, c.relname
      from tree join pg_class c on c.oid = tree.oid join pg_namespace n on n.oid = c.relnamespace
     where c.relpersistence <> 't'
     order by c.oid
"""
_ALONE = sql.SQL("set local max_parallel_workers_per_gather = 0")
_FIGURES = sql.SQL("{}, min(at), max(at)").format(source_sums(sql.SQL("hash")))


@dataclass(frozen=True, slots=True)
class ComparedTable:
    """A table to compare; `sample` of ten thousand rows are read.

    These are the rows whose hash of `located` modulo ten thousand is below `sample`. With `children`, the rows of
    tables that inherit from it are included; then no key identifies rows.
    """

    fingerprint: Fingerprint
    columns: tuple[ComparedColumn, ...]
    key: tuple[ComparedColumn, ...]
    sample: int = WHOLE
    children: bool = False

    @property
    def by_value(self) -> ComparedColumn | None:
        """The key if it is one integer, which is then the position of a row; None otherwise."""
        (only,) = self.key if len(self.key) == 1 else (None,)
        return only if only is not None and pa.types.is_integer(only.type) and only.text_name is None else None

    @property
    def located(self) -> tuple[ComparedColumn, ...]:
        """The columns whose hash is the position of a row if `by_value` is None: the key, or all columns."""
        return self.key or self.columns


@dataclass(frozen=True, slots=True)
class ServerSide:
    """One table, in a session with the comparison's snapshot and a lock on every table whose rows are read."""

    session: Session
    table: ComparedTable

    def whole(self) -> LocatedDigest:
        """Return the digest of all rows."""
        (figures,) = self._rows(sql.SQL("select {} from {}").format(_FIGURES, self._from(None)))
        return LocatedDigest.of(*figures)

    def parts(self, within: Range) -> Mapping[int, LocatedDigest]:
        """Return the digest of each part of a range that has rows."""
        query = sql.SQL("select div(at::numeric - {}, {})::int, {} from {} group by 1").format(
            sql.Literal(within.low), sql.Literal(within.step), _FIGURES, self._from(within)
        )
        return {part: LocatedDigest.of(*figures) for part, *figures in self._rows(query)}

    def rows(self, within: Range, *, values: bool) -> Counter[Row]:
        """Return the rows of a range."""
        key = source_row(self.table.key) if self.table.key else sql.SQL("null")
        content = (
            source_row(self.table.columns) if values else sql.SQL("{}::text").format(self._hash(self.table.columns))
        )
        query = sql.SQL("select key, content from {}").format(
            self._from(within, sql.SQL("{} key").format(key), sql.SQL("{} content").format(content))
        )
        return Counter(Row(key, content) for key, content in self._rows(query))

    def column_hashes(self, keys: Sequence[str]) -> dict[str | None, tuple[int, ...]]:
        """Return the hash of each column, in the order of the columns, for keys that `rows` has returned.

        If several rows have one key, the hashes are those of one of them.
        """
        key = source_row(self.table.key)
        hashes = sql.SQL(", ").join(self._hash((column,)) for column in self.table.columns)
        query = sql.SQL("select {}, array[{}] from {} where {}").format(
            key, hashes, self._rows_read(), self._has_key(key, keys)
        )
        return {found: tuple(hashes) for found, hashes in self._rows(query)}

    def _has_key(self, key: sql.Composable, keys: Sequence[str]) -> sql.Composed:
        """Return a condition for which the server can use the index of a key that is one integer."""
        if (column := self.table.by_value) is None:
            return sql.SQL("{} = any({}::text[])").format(key, sql.Literal(list(keys)))
        numbers = [int(each.strip("()")) for each in keys]
        return sql.SQL("{} = any({}::bigint[])").format(sql.Identifier(column.source_name), sql.Literal(numbers))

    def _from(self, within: Range | None, *wanted: sql.Composable) -> sql.Composed:
        """Return a FROM item with these columns of each row, or with its hash and position.

        With `offset 0` each is computed once per row.
        """
        position = self._position()
        conditions: list[sql.Composable] = []
        if within is not None:
            conditions.append(
                sql.SQL("{} between {} and {}").format(position, sql.Literal(within.low), sql.Literal(within.high))
            )
        if self.table.sample < WHOLE:
            located, whole = self._hash(self.table.located), sql.Literal(WHOLE)
            conditions.append(sql.SQL("{} % {} < {}").format(located, whole, sql.Literal(self.table.sample)))
        figures = sql.SQL("{} hash").format(self._hash(self.table.columns)), sql.SQL("{} at").format(position)
        return sql.SQL("(select {} from {}{} offset 0) rows").format(
            sql.SQL(", ").join(wanted or figures),
            self._rows_read(),
            sql.SQL(" where {}").format(sql.SQL(" and ").join(conditions)) if conditions else sql.SQL(""),
        )

    def _rows_read(self) -> sql.Composable:
        """Return a FROM item with the table's own rows or, with `children`, also those of all tables below it."""
        fingerprint = self.table.fingerprint
        if not self.table.children:
            return sql.SQL("only {}").format(sql.Identifier(fingerprint.schema, fingerprint.name))
        columns = sql.SQL(", ").join(sql.Identifier(column.source_name) for column in self.table.columns)
        tables = self.session.rows(_TREE, [fingerprint.oid])
        each = (sql.SQL("select {} from only {}").format(columns, sql.Identifier(*table)) for table in tables)
        return sql.SQL("({}) tree").format(sql.SQL(" union all ").join(each))

    def _position(self) -> sql.Composable:
        if (key := self.table.by_value) is not None:
            return sql.Identifier(key.source_name)
        return self._hash(self.table.located)

    def _hash(self, columns: tuple[ComparedColumn, ...]) -> sql.Composed:
        return source_md5(source_row(columns), utf8=self.session.stores_utf8)

    def _rows(self, query: sql.Composed) -> list[tuple[Any, ...]]:
        name = self.table.fingerprint.qualified
        with translated(f"comparing {self.session.server.object(name)}", self.session.server):
            return self.session.connection.execute(query.as_bytes(None)).fetchall()  # UTF-8 also with `send_as_stored`


@contextmanager
def reading(snapshot: SharedSnapshot, timeouts: Timeouts, *tables: Fingerprint) -> Iterator[Session]:
    """Return a session in a snapshot, with the tables locked against being altered or truncated."""
    with snapshot.session("compare", timeouts) as session:
        session.execute(_ALONE.format(), "disabling parallel query")
        for table in tables:
            require_same(session, table)
        session.send_as_stored()
        yield session
