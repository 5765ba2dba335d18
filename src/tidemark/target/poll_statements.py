"""The SQL statements that stage what a poll has received from the source. Pure.

Rows of a poll are received as they are at the source, without the operation. At the target they become changes of a
stage (`target.statements`): received rows are compared with the table by their key and by the text of their values, and
rows of the table whose hash the source does not have are deleted. A key is compared by its text too: numeric 1.0 and
1.00 are the keys of two rows, one of which is deleted and the other inserted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from tidemark.pipeline.poll.digests import Ranges, Text, in_ranges
from tidemark.target.statements import StageTable, stage_column
from tidemark.target.tables import TargetTable

_AND, _COMMA = sql.SQL(" and "), sql.SQL(", ")
_HASH = sql.SQL("q.h")
INSERTED, UPDATED, DELETED = "i", "u", "d"


@dataclass(frozen=True, slots=True)
class PollStage:
    """The temporary tables for one table of a poll: received rows, received hashes, and the stage of the changes.

    `text` is the digested text of a row of the table: of its key, or of all columns that are not generated.
    """

    table: TargetTable
    number: int
    text: Text

    @property
    def stage(self) -> StageTable:
        """The stage of the changes."""
        return StageTable(self.table, self.number, frozenset(), frozenset())

    @property
    def _received(self) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"tidemark_received_{self.number}")

    @property
    def _hashes(self) -> sql.Identifier:
        return sql.Identifier("pg_temp", f"tidemark_hashes_{self.number}")

    def received_created(self) -> sql.Composed:
        """Create the table of received rows."""
        columns = (stage_column(f"c{at}", column) for at, column in enumerate(self.table.columns))
        return sql.SQL("create temporary table {} ({}) on commit drop").format(self._received, _COMMA.join(columns))

    def received_copied(self, *, binary: bool) -> sql.Composed:
        """Read rows into it."""
        return sql.SQL("copy {} from stdin (format {})").format(self._received, sql.SQL("binary" if binary else "text"))

    def hashes_created(self) -> sql.Composed:
        """Create the table of received hashes."""
        return sql.SQL("create temporary table {} (h bigint) on commit drop").format(self._hashes)

    def hashes_copied(self) -> sql.Composed:
        """Read hashes into it."""
        return sql.SQL("copy {} from stdin (format binary)").format(self._hashes)

    def changed(self) -> sql.Composed:
        """Stage the received rows that the table does not have, or has with other values."""
        table = self.table
        return sql.SQL(
            "insert into {} ({}) select {} from {} r left join only {} t on {} where t.ctid is null or {} <> {}"
        ).format(
            self.stage.identifier,
            _COMMA.join(map(sql.Identifier, ("o", *self._keys(), *self._values()))),
            _COMMA.join(
                [
                    sql.SQL("case when t.ctid is null then {} else {} end").format(INSERTED, UPDATED),
                    *(_of("r", f"c{at}") for at in (*table.key, *table.written)),
                ]
            ),
            self._received,
            table.identifier,
            _AND.join(self._same_key(at) for at in table.key),
            self._row("t", (table.columns[at].name for at in table.written)),
            self._row("r", self._values()),
        )

    def gone(self, ranges: Ranges) -> sql.Composed:
        """Stage the deletion of the rows in some ranges whose hashes were not received."""
        names = [
            sql.SQL("{} {}").format(sql.Identifier(self.table.columns[at].name), sql.Identifier(f"k{at}"))
            for at in self.table.key
        ]
        return sql.SQL(
            "insert into {} ({}) select {} from (select {}, {} h from only {} offset 0) q"
            " where {} and not exists (select from {} x where x.h = q.h)"
        ).format(
            self.stage.identifier,
            _COMMA.join(map(sql.Identifier, ("o", *self._keys()))),
            _COMMA.join([sql.Literal(DELETED), *(_of("q", name) for name in self._keys())]),
            _COMMA.join(names),
            self.text.hash_at_source(),
            self.table.identifier,
            in_ranges(_HASH, ranges),
            self._hashes,
        )

    def missed(self, ranges: Ranges) -> sql.Composed:
        """The hashes that were received and are neither those of the table nor of rows to insert."""
        return sql.SQL(
            "select x.h from {} x where not exists (select from ({} offset 0) q where {} and q.h = x.h) limit 6"
        ).format(self._hashes, self.hashes(inserted=True), in_ranges(_HASH, ranges))

    def contents(self, ranges: Ranges) -> sql.Composed:
        """Stage the difference of the contents in some ranges, for a table without a key; each as often as it occurs.

        The received rows are all rows of the source in these ranges.
        """
        table, values = self.table, self._values()
        named = [
            sql.SQL("{} {}").format(sql.Identifier(table.columns[at].name), sql.Identifier(f"c{at}"))
            for at in table.written
        ]
        return sql.SQL(
            "with numbered as (select q.*, row_number() over (partition by q.there, q.content) n from ("
            "select {here} false there, {received} content from {stage} r"
            " union all select {columns} true, {content} from (select {named} {hash} h from only {table} offset 0) q"
            " where {within}) q)"
            " insert into {changes} ({names}) select {fields} from numbered a"
            " where not exists (select from numbered b where b.content = a.content and b.n = a.n"
            " and b.there <> a.there)"
        ).format(
            here=_list([_of("r", name) for name in values]),
            received=self._row("r", values),
            stage=self._received,
            columns=_list([_of("q", name) for name in values]),
            content=self._row("q", values),
            named=_list(named),
            hash=self.text.hash_at_source(),
            table=table.identifier,
            within=in_ranges(_HASH, ranges),
            changes=self.stage.identifier,
            names=_COMMA.join(map(sql.Identifier, ("o", *values))),
            fields=_COMMA.join(
                [
                    sql.SQL("case when a.there then {} else {} end").format(DELETED, INSERTED),
                    *(_of("a", name) for name in values),
                ]
            ),
        )

    def hashes(self, *, inserted: bool = False) -> sql.Composed:
        """A query for the hashes `h` of the table, and of the rows that are to be inserted."""
        own = sql.SQL("select {} h from only {}").format(self.text.hash_at_source(), self.table.identifier)
        return sql.SQL("{} union all {}").format(own, self.staged_hashes(INSERTED)) if inserted else own

    def staged_hashes(self, operation: str) -> sql.Composed:
        """A query for the hashes `h` of the staged changes of one operation."""
        names = {
            column.name: f"k{at}" if at in self.table.key else f"c{at}" for at, column in enumerate(self.table.columns)
        }
        columns = tuple(replace(each, source_name=names[each.source_name]) for each in self.text.columns)
        return sql.SQL("select {} h from {} where o = {}").format(
            replace(self.text, columns=columns).hash_at_source(), self.stage.identifier, operation
        )

    def operations(self) -> sql.Composed:
        """How many changes of each operation the stage has."""
        return sql.SQL("select o::text, count(*) from {} group by 1").format(self.stage.identifier)

    def deleted_keys(self) -> sql.Composed:
        """The keys of some rows that are to be deleted, as text."""
        return sql.SQL("select {} from {} where o = {} limit 6").format(
            _COMMA.join(key_texts(self._keys())), self.stage.identifier, DELETED
        )

    def deleted_all(self) -> sql.Composed:
        """Delete all rows of the table."""
        return sql.SQL("delete from only {}").format(self.table.identifier)

    def _keys(self) -> list[str]:
        return [f"k{at}" for at in self.table.key]

    def _values(self) -> list[str]:
        return [f"c{at}" for at in self.table.written]

    def _same_key(self, at: int) -> sql.Composed:
        here, there = _of("t", self.table.columns[at].name), _of("r", f"c{at}")
        same = self.table.columns[at].equal(here, there)
        if self.text.integer:
            return same
        return sql.SQL('{} and {}::text collate "C" = {}::text collate "C"').format(same, here, there)

    def _row(self, alias: str, names: Iterable[str]) -> sql.Composed:
        return sql.SQL("row({})::text").format(_COMMA.join(_of(alias, name) for name in names))


def key_texts(names: Sequence[str]) -> tuple[sql.Composable, ...]:
    """The expressions for the text of a key."""
    return tuple(sql.SQL("{}::text").format(sql.Identifier(name)) for name in names)


def _of(alias: str, name: str) -> sql.Composable:
    return sql.SQL("{}.{}").format(sql.SQL(alias), sql.Identifier(name))


def _list(parts: Sequence[sql.Composable]) -> sql.Composed:
    """Items of a list, each followed by a comma."""
    return sql.SQL("").join(sql.SQL("{}, ").format(part) for part in parts)
