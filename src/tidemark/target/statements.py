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
class StageTable:
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
        """Create it; with `once` for this transaction only.

        `on commit delete rows` would truncate the stages of all tables at every commit, also those that are empty.
        """
        columns = self.table.columns
        parts: list[sql.Composable] = [sql.SQL('o "char"')]
        parts += [stage_column(f"k{at}", columns[at], text=at in self.texts) for at in self.table.key]
        parts += [stage_column(f"c{at}", columns[at], text=at in self.texts) for at in self.table.written]
        parts += [sql.SQL("m bytea")] if self.marked else []
        return sql.SQL("create temporary table {} ({}) on commit {}").format(
            sql.Identifier(self._name), _COMMA.join(parts), sql.SQL("drop" if once else "preserve rows")
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
        """Delete the rows that end or move, or are read from the source again."""
        return sql.SQL("delete from only {} t using {} s where s.o in ('d', 'm', 'x') and {}").format(
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

    def new_counted(self) -> sql.Composed:
        """Count the rows that are new or move."""
        return sql.SQL("select count(*) from {} where o in ('i', 'm')").format(self.identifier)

    def deleted_contents(self) -> sql.Composed:
        """Delete as many rows of each content as the stage has, from a table without a key."""
        here, there = content(self.table), self._content()
        return sql.SQL(
            "delete from only {0} t using ("
            "select x.at from (select ctid as at, {1} as content, row_number() over (partition by {1}) as n"
            " from only {0}) x"
            " join (select {2} as content, count(*) as n from {3} s where s.o = 'd' group by 1) y"
            " on x.content = y.content and x.n <= y.n) gone where t.ctid = gone.at"
        ).format(self.table.identifier, here, there, self.identifier)

    def unfit(self) -> sql.Composed:
        """Find changes of rows of which the target has none, or several; unless they delete, give them the operation x.

        Returns the operation, how many rows the target has, the key of the origin and the key of the new row, as text.
        """
        origin = [_text(self._key(at)) for at in self.table.key]
        after = [_text(self._value(at)) for at in self.table.key]
        return sql.SQL(
            "update {0} s set o = case when s.o = 'd' then s.o else 'x' end from ("
            "select s.ctid as at, count(t.ctid) as n from {0} s left join only {1} t on {2}"
            " where s.o in ('d', 'm', 'u') group by s.ctid having count(t.ctid) <> 1) y"
            " where s.ctid = y.at returning s.o::text, y.n, array[{3}], array[{4}]"
        ).format(self.identifier, self.table.identifier, self._same_row(), _COMMA.join(origin), _COMMA.join(after))

    def moved(self) -> sql.Composed:
        """Turn all updates into moves."""
        return sql.SQL("update {} set o = 'm' where o = 'u'").format(self.identifier)

    def replaced(self) -> sql.Composed:
        """Delete rows that have the key of a row to be put in; returns their keys, as text."""
        return self._deleted_where_equal("('i', 'm', 'x')", self.table.key)

    def blocking(self, unique: Sequence[int]) -> sql.Composed:
        """Delete rows whose values in these unique columns are those of a row to be put in; returns their keys."""
        return self._deleted_where_equal("('i', 'm')", unique)

    def _deleted_where_equal(self, operations: str, columns: Sequence[int]) -> sql.Composed:
        same = [_equal(self.table.columns[at], self._value(at)) for at in columns]
        return sql.SQL("delete from only {} t using {} s where s.o in {} and {} returning {}").format(
            self.table.identifier, self.identifier, sql.SQL(operations), _AND.join(same), _key_texts(self.table)
        )

    def short_contents(self) -> sql.Composed:
        """The contents of which the target has fewer rows than are to be deleted, and how many fewer."""
        return sql.SQL(
            "select y.content, y.n - count(x.content) from"
            " (select {} as content, count(*) as n from {} s where s.o = 'd' group by 1) y"
            " left join (select {} as content from only {}) x on x.content = y.content"
            " group by y.content, y.n having count(x.content) < y.n"
        ).format(self._content(), self.identifier, content(self.table), self.table.identifier)

    def contents(self) -> sql.Composed:
        """The contents of the rows to insert."""
        return sql.SQL("select {} from {} s where s.o = 'i'").format(self._content(), self.identifier)

    def filled_with_keys(self) -> sql.Composed:
        """Add rows to delete, by their keys: the parameters are a list of texts for each column of the key."""
        names = [sql.Identifier(f"k{at}") for at in self.table.key]
        return self._filled("d", names)

    def filled_with_rows(self) -> sql.Composed:
        """Add rows to insert: the parameters are a list of texts for each column."""
        return self._filled("i", [sql.Identifier(f"c{at}") for at in self.table.written])

    def _filled(self, operation: str, names: Sequence[sql.Identifier]) -> sql.Composed:
        lists = [sql.SQL("%s::text[]")] * len(names)
        return sql.SQL("insert into {} (o, {}) select {}, x.* from unnest({}) x").format(
            self.identifier, _COMMA.join(names), sql.Literal(operation), _COMMA.join(lists)
        )

    def _content(self) -> sql.Composed:
        return sql.SQL("row({})::text").format(_COMMA.join(self._value(at) for at in self.table.written))

    def _same_row(self) -> sql.Composed:
        """The condition for the row of a change. Keys of other types than PostgreSQL's own have the same text too.

        The keys `a` and `A` are equal for the index on a column of type citext.
        """
        same = [_equal(self.table.columns[at], self._key(at)) for at in self.table.key]
        for at in self.table.key:
            column = self.table.columns[at]
            if column.equality != "=":
                name = sql.SQL("t.{}").format(sql.Identifier(column.name))
                same.append(sql.SQL('concat({}) collate "C" = concat({}) collate "C"').format(name, self._key(at)))
        return _AND.join(same)

    def _key(self, at: int) -> sql.Composable:
        return self._typed(at, f"k{at}")

    def _value(self, at: int) -> sql.Composable:
        return self._typed(at, f"c{at}")

    def _typed(self, at: int, name: str) -> sql.Composable:
        value = sql.SQL("s.{}").format(sql.Identifier(name))
        return self.table.columns[at].of_text(value) if at in self.texts else value

    def _value_or_own(self, at: int) -> sql.Composable:
        if at not in self.marked:
            return self._value(at)
        own = sql.SQL("t.{}").format(sql.Identifier(self.table.columns[at].name))
        return sql.SQL("case when {} then {} else {} end").format(self._is_marked(at), own, self._value(at))

    def _theirs(self, at: int, value: sql.Composable) -> sql.Composable:
        return _text(value) if at in self.texts else value

    def _texts(self, at: int) -> tuple[sql.Composable, sql.Composable]:
        return _text(sql.SQL("t.{}").format(sql.Identifier(self.table.columns[at].name))), _text(self._value(at))

    def _is_marked(self, at: int) -> sql.Composed:
        return sql.SQL("get_byte(s.m, {}) = 1").format(sql.Literal(self.table.written.index(at)))

    def _if_sent(self, at: int, condition: sql.Composed) -> sql.Composed:
        return condition if at not in self.marked else sql.SQL("not {} and {}").format(self._is_marked(at), condition)


def content(table: TargetTable) -> sql.Composed:
    """The text of a whole row, which identifies the rows of a table without a key."""
    names = [sql.Identifier(table.columns[at].name) for at in table.written]
    return sql.SQL("row({})::text").format(_COMMA.join(names))


def contents_deleted(table: TargetTable, contents: Sequence[Sequence[str]]) -> sql.Composed:
    """Delete all rows of these contents and return these."""
    return sql.SQL("delete from only {0} where {1} = any({2}) returning {1}").format(
        table.identifier, content(table), *_lists(contents)
    )


def rows_at_source(table: TargetTable, keys: Sequence[Sequence[str]]) -> sql.Composed:
    """The rows of the source that have these keys, or contents, as text.

    Each row is returned once, also if several of the texts are equal as keys, such as 1.0 and 1.00.
    """
    names = [sql.SQL("t.{}").format(sql.Identifier(table.columns[at].name)) for at in table.written]
    listed = _COMMA.join(map(_text, names))
    if not table.key:
        return sql.SQL("select {} from only {} t where row({})::text = any({})").format(
            listed, table.identifier, _COMMA.join(names), *_lists(keys)
        )
    wanted = [sql.Identifier(f"k{at}") for at in table.key]
    same = [
        _equal(table.columns[at], table.columns[at].of_text(sql.SQL("x.{}").format(name)))
        for at, name in zip(table.key, wanted, strict=True)
    ]
    return sql.SQL("select {} from only {} t where exists (select from unnest({}) as x({}) where {})").format(
        listed,
        table.identifier,
        _COMMA.join(_lists(keys)),
        _COMMA.join(wanted),
        _AND.join(same),
    )


def _lists(rows: Sequence[Sequence[str]]) -> list[sql.Composed]:
    """Texts as one array for each column: parameters would require names of tables and columns without `%`."""
    return [sql.SQL("{}::text[]").format(sql.Literal(list(column))) for column in zip(*rows, strict=True)]


def _equal(column: TargetColumn, value: sql.Composable) -> sql.Composed:
    """The condition that a row of the table has this value, as a key."""
    return column.equal(sql.SQL("t.{}").format(sql.Identifier(column.name)), value)


def _text(value: sql.Composable) -> sql.Composed:
    """The text of a value as the stream sends it: `concat` calls the output function of its type.

    A cast to text would cut spaces off `bpchar`, and use the function of a cast that a user has created.
    """
    return sql.SQL("case when {0} is distinct from null then concat({0}) end").format(value)


def _key_texts(table: TargetTable) -> sql.Composed:
    names = [_text(sql.SQL("t.{}").format(sql.Identifier(table.columns[at].name))) for at in table.key]
    return sql.SQL("array[{}]").format(_COMMA.join(names))


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
