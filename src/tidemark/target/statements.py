"""The SQL statements that merge a stage into its table. Pure.

First the rows whose key or exclusive columns change become moves, and a move takes the values that were not sent again
from the target. All rows that move or end are deleted before any row is put in: so rows can exchange unique values.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from psycopg import sql

from tidemark.target.tables import TargetColumn, TargetTable

_AND, _OR, _COMMA = sql.SQL(" and "), sql.SQL(" or "), sql.SQL(", ")


@dataclass(frozen=True, slots=True)
class Stage:
    """A temporary table for changes of one table. The values of the columns in `texts` were sent as text.

    `marked` are the columns of which values were not sent again; if it is empty, the stage has no marks.
    """

    table: TargetTable
    number: int
    texts: frozenset[int]
    marked: frozenset[int]

    @property
    def identifier(self) -> sql.Identifier:
        """The name of the stage."""
        return sql.Identifier("pg_temp", self._name)

    @property
    def _name(self) -> str:
        return f"tidemark_stage_{self.number}"

    def created(self, *, once: bool = False) -> sql.Composed:
        """Create it; with `once` for this transaction only."""
        columns = self.table.columns
        parts: list[sql.Composable] = [sql.SQL('o "char"')]
        parts += [stage_column(f"k{at}", columns[at], text=at in self.texts) for at in self.table.key]
        parts += [stage_column(f"c{at}", columns[at], text=at in self.texts) for at in self.table.written]
        parts += [sql.SQL("m bytea")] if self.marked else []
        return sql.SQL("create temporary table {} ({}) on commit {}").format(
            sql.Identifier(self._name), _COMMA.join(parts), sql.SQL("drop" if once else "delete rows")
        )

    def copied(self) -> sql.Composed:
        """Read rows into it."""
        return sql.SQL("copy {} from stdin (format binary)").format(self.identifier)

    def moves(self) -> sql.Composed | None:
        """Turn updates into moves where a column changes that is exclusive, or an identity that is always generated."""
        table = self.table
        concerned = [
            at
            for at in table.written
            if at not in table.key and (at in table.exclusive or table.columns[at].always_identity)
        ]
        if not concerned:
            return None
        differs = [self._if_sent(at, sql.SQL("{} is distinct from {}").format(*self._texts(at))) for at in concerned]
        return sql.SQL("update {} s set o = 'm' from only {} t where s.o = 'u' and {} and ({})").format(
            self.identifier, table.identifier, self._same_row(), _OR.join(differs)
        )

    def fetched(self) -> list[sql.Composed]:
        """Take the values of moves that were not sent again from the target."""
        return [
            sql.SQL("update {} s set {} = {} from only {} t where s.o = 'm' and {} and {}").format(
                self.identifier,
                sql.Identifier(f"c{at}"),
                self._theirs(at, sql.SQL("t.{}").format(sql.Identifier(self.table.columns[at].name))),
                self.table.identifier,
                self._is_marked(at),
                self._same_row(),
            )
            for at in sorted(self.marked)
        ]

    def deleted(self) -> sql.Composed:
        """Delete the rows that end or move."""
        return sql.SQL("delete from only {} t using {} s where s.o in ('d', 'm') and {}").format(
            self.table.identifier, self.identifier, self._same_row()
        )

    def updated(self) -> sql.Composed | None:
        """Update rows in place; None if the table has no columns besides its key."""
        changed = [
            at for at in self.table.written if at not in self.table.key and not self.table.columns[at].always_identity
        ]
        if not changed:
            return None
        values = [
            sql.SQL("{} = {}").format(sql.Identifier(self.table.columns[at].name), self._value_or_own(at))
            for at in changed
        ]
        return sql.SQL("update only {} t set {} from {} s where s.o = 'u' and {}").format(
            self.table.identifier, _COMMA.join(values), self.identifier, self._same_row()
        )

    def inserted(self) -> sql.Composed:
        """Insert the rows that are new or move."""
        names = [sql.Identifier(self.table.columns[at].name) for at in self.table.written]
        values = [self._value(at) for at in self.table.written]
        if not names:
            return sql.SQL("insert into {} select from {} s where s.o in ('i', 'm')").format(
                self.table.identifier, self.identifier
            )
        return sql.SQL(
            "insert into {} ({}) overriding system value select {} from {} s where s.o in ('i', 'm')"
        ).format(self.table.identifier, _COMMA.join(names), _COMMA.join(values), self.identifier)

    def deleted_contents(self) -> sql.Composed:
        """Delete as many rows of each content as the stage has, from a table without a key."""
        names = [sql.SQL("{}").format(sql.Identifier(self.table.columns[at].name)) for at in self.table.written]
        here = sql.SQL("row({})::text").format(_COMMA.join(names))
        there = sql.SQL("row({})::text").format(_COMMA.join(self._value(at) for at in self.table.written))
        return sql.SQL(
            "delete from only {0} t using ("
            "select x.at from (select ctid as at, {1} as content, row_number() over (partition by {1}) as n"
            " from only {0}) x"
            " join (select {2} as content, count(*) as n from {3} s where s.o = 'd' group by 1) y"
            " on x.content = y.content and x.n <= y.n) gone where t.ctid = gone.at"
        ).format(self.table.identifier, here, there, self.identifier)

    def missing(self, operations: str) -> sql.Composed:
        """The keys of changes with these operations for which the target has no row, as text."""
        keys = [sql.SQL("{}::text").format(self._key(at)) for at in self.table.key]
        return sql.SQL(
            "select {} from {} s where s.o::text = any({}) and not exists (select from only {} t where {}) limit 6"
        ).format(
            _COMMA.join(keys), self.identifier, sql.Literal(list(operations)), self.table.identifier, self._same_row()
        )

    def _same_row(self) -> sql.Composed:
        return _AND.join(
            sql.SQL("t.{} = {}").format(sql.Identifier(self.table.columns[at].name), self._key(at))
            for at in self.table.key
        )

    def _key(self, at: int) -> sql.Composable:
        return self._typed(at, f"k{at}")

    def _value(self, at: int) -> sql.Composable:
        return self._typed(at, f"c{at}")

    def _typed(self, at: int, name: str) -> sql.Composable:
        value = sql.SQL("s.{}").format(sql.Identifier(name))
        if at not in self.texts:
            return value
        return sql.SQL("{}::{}").format(value, sql.SQL(self.table.columns[at].type))

    def _value_or_own(self, at: int) -> sql.Composable:
        if at not in self.marked:
            return self._value(at)
        own = sql.SQL("t.{}").format(sql.Identifier(self.table.columns[at].name))
        return sql.SQL("case when {} then {} else {} end").format(self._is_marked(at), own, self._value(at))

    def _theirs(self, at: int, value: sql.Composable) -> sql.Composable:
        return sql.SQL("{}::text").format(value) if at in self.texts else value

    def _texts(self, at: int) -> tuple[sql.Composable, sql.Composable]:
        here = sql.SQL("t.{}::text").format(sql.Identifier(self.table.columns[at].name))
        return here, sql.SQL("{}::text").format(self._value(at))

    def _is_marked(self, at: int) -> sql.Composed:
        return sql.SQL("get_byte(s.m, {}) = 1").format(sql.Literal(self.table.written.index(at)))

    def _if_sent(self, at: int, condition: sql.Composed) -> sql.Composed:
        return condition if at not in self.marked else sql.SQL("not {} and {}").format(self._is_marked(at), condition)


def copied_into(table: TargetTable) -> sql.Composed:
    """Read rows into the table itself."""
    names = [sql.Identifier(table.columns[at].name) for at in table.written]
    return sql.SQL("copy {} ({}) from stdin (format binary)").format(table.identifier, _COMMA.join(names))


def truncated(tables: Sequence[TargetTable]) -> sql.Composed:
    """Remove all rows of tables, and of no others."""
    return sql.SQL("truncate {}").format(_COMMA.join(sql.SQL("only {}").format(each.identifier) for each in tables))


def can_be_copied(table: TargetTable, texts: Collection[int]) -> bool:
    """Whether new rows can be read into the table itself: no value of them was sent as text."""
    return bool(table.written) and not any(at in texts for at in table.written)


def stage_column(name: str, column: TargetColumn, *, text: bool = False) -> sql.Composed:
    """Define a column of a stage."""
    kind = "text" if text else column.stored_type
    collation = f" collate {column.collation}" if column.collation and not text else ""
    return sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind + collation))
