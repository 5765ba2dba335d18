"""The rows of one table at one boundary for the local engine: a query of DuckDB over files and Arrow tables.

The plan is the one that Spark reads by (`reads.planning`), and so are the merged changes. What cannot be merged in this
process is refused with EngineRefused. Nothing here runs a query.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.clock import Boundary
from tidemark.errors import EngineRefused, LakeDamaged
from tidemark.lake.columns import StoredColumn
from tidemark.lake.versions import BEGIN_LSN, END_LSN, VersionFile, Versions
from tidemark.quoting import duckdb_text
from tidemark.reads.equalities import Equalities
from tidemark.reads.few import Few, FewContents, MergeLimits, contents_here, merged_here
from tidemark.reads.local_sql import cell_values, null_of
from tidemark.reads.places import positions_of
from tidemark.reads.planning import FoundFiles, PlannedTable, TablePlanner
from tidemark.reads.shape import COPY_AGAIN, ITS
from tidemark.reads.shown import Shown, ShownTable, shown_names
from tidemark.reads.unchanged import FOLDED, NEVER_SENT
from tidemark.reads.union import matched
from tidemark.reads.versions import chosen
from tidemark.reads.visible import sql_misses, sql_sees
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.history import Span, TableHistory
from tidemark.values.kernels import Longs
from tidemark.values.types import Types, decoding_of

LIMITS = MergeLimits(rows=2_000_000, file_bytes=128 << 20, tail_bytes=64 << 20)
FILE, ROW = "file_index", "file_row_number"  # DuckDB's own columns of a Parquet file
_NUMBERS = count(1)
_ELSEWHERE = "Run the statement at the source, or with Spark."
_FEWER = "a row was deleted more often than it was inserted"


@dataclass(frozen=True, slots=True)
class LocalRows:
    """The rows of a table as a query, whose columns are the cells of `columns`: `v3` and, with a fallback, `t3`.

    `bound` are the Arrow tables that the query names. Of a value that its type cannot hold, only the text is there.
    """

    columns: tuple[Shown, ...]
    query: str
    bound: Mapping[str, pa.Table] = field(default_factory=dict)

    def guarded(self, attnums: Iterable[int] | None = None) -> str:
        """Return the query of columns without text fallbacks, which fails at a value that has only its text."""
        wanted = None if attnums is None else set(attnums)
        chosen = [column for column in self.columns if wanted is None or column.attnum in wanted]
        return f"SELECT {', '.join(map(_guarded, chosen)) or '1 AS nothing'} FROM ({self.query})"


def _guarded(column: Shown) -> str:
    value = f"v{column.attnum}"
    if not column.fallback:
        return value
    why = duckdb_text(f"column {column.name} has a value that its type cannot hold")
    return f"CASE WHEN t{column.attnum} IS NULL THEN {value} ELSE error({why}) END AS {value}"


class LocalReader:
    """Reads tables at the boundary of a planner."""

    def __init__(self, planner: TablePlanner) -> None:
        self._planner = planner

    def table(self, history: TableHistory, span: Span, equalities: Equalities | None = None) -> LocalRows:
        """Return the table's rows; rows that do not satisfy the equalities may be left out."""
        return self._planner.again(lambda: self._table(history, span, equalities or {}))

    def _table(self, history: TableHistory, span: Span, equalities: Equalities) -> LocalRows:
        planned, boundary = self._planner.planned(history, span), self._planner.boundary
        found = planned.found
        if not found.shown.columns:
            raise EngineRefused(f"{history.name} has no columns", _ELSEWHERE)
        rows = _RowsQuery(found.shown)
        if found.shown.key:
            rows.keyed(planned, self._few(planned), boundary, equalities)
        else:
            rows.contents(found, contents_here(self._changes(found), found.shown.shape), boundary)
        return LocalRows(found.shown.columns, rows.query, rows.bound)

    def _few(self, planned: PlannedTable) -> Few:
        """The changes of a table with a key, which are merged once, also if they are too many for a plan of Spark."""
        few = planned.few or planned.many
        if few is None:
            few = planned.many = merged_here(self._changes(planned.found), planned.found.shown.shape)
        if few is None:
            raise EngineRefused("changes of the table cannot be merged in this process", _ELSEWHERE)
        return few

    def _changes(self, found: FoundFiles) -> pa.Table:
        changes = self._planner.changes_here(found, LIMITS)
        if changes is None:
            raise EngineRefused("the table has too many changes that are not folded yet", _ELSEWHERE)
        return changes


class _RowsQuery:
    """The query of one table while it is composed."""

    def __init__(self, shown: ShownTable) -> None:
        self._shown, self._shape = shown, shown.shape
        self._cells = ", ".join(self._shape.cells)
        self.bound: dict[str, pa.Table] = {}
        self.query = ""

    def keyed(self, planned: PlannedTable, few: Few, boundary: Boundary, equalities: Equalities) -> None:
        """The folded rows whose keys no change has, the newest row of each other key, and rows with folded values."""
        folded = planned.found.folded
        files: Sequence[VersionFile] = folded.files if folded is not None else ()
        if (of_key := planned.of_key(few, equalities)) is not None:
            few, files = of_key
        parts = []
        if folded is not None and not few.truncated:
            base = self._visible(folded, files, boundary)
            parts.append(self._untouched(base, folded, files, few, boundary))
            if few.incomplete is not None:
                parts.append(self._completed(base, few.incomplete))
        elif few.incomplete is not None:
            raise LakeDamaged(f"table oid {self._shown.oid}: {NEVER_SENT}", COPY_AGAIN)
        if len(few.rows) or not parts:
            parts.append(f"SELECT {self._cells} FROM {self._bind(few.rows)}")
        self.query = " UNION ALL ".join(parts)

    def contents(self, found: FoundFiles, few: FewContents, boundary: Boundary) -> None:
        """The sum of contents: rows that are not removed, and those that may be as often as they are added."""
        folded = found.folded if not few.truncated else None
        more, fewer = [], []
        if folded is not None:
            more.append(self._visible(folded, folded.files, boundary))
            asked = chosen(folded.files, boundary).asked
            if asked and boundary.excluded:
                ended = f"{sql_misses(boundary, BEGIN_LSN)} AND {END_LSN} IS NOT NULL AND {sql_sees(boundary, END_LSN)}"
                fewer.append(self._of_files(folded, asked, where=ended))
        if len(few.added) or not more:
            more.append(f"SELECT {self._cells} FROM {self._bind(few.added)}")
        if len(few.removed):
            fewer.append(f"SELECT {self._cells} FROM {self._bind(few.removed)}")
        added = " UNION ALL ".join(more)
        self.query = self._summed(added, " UNION ALL ".join(fewer)) if fewer else added

    def _visible(self, folded: Versions, files: Sequence[VersionFile], boundary: Boundary) -> str:
        """The rows of files that are visible at the boundary."""
        found = chosen(files, boundary)
        parts = [self._of_files(folded, found.clean)] if found.clean or not found.asked else []
        if found.asked:
            begun, ended = sql_sees(boundary, BEGIN_LSN), sql_sees(boundary, END_LSN)
            where = f"{begun} AND ({END_LSN} IS NULL OR NOT ({ended}))"
            parts.append(self._of_files(folded, found.asked, where=where))
        return " UNION ALL ".join(parts)

    def _of_files(self, folded: Versions, files: Sequence[VersionFile], *, where: str = "") -> str:
        """The rows of files by cells. A file of a copy has no column for text fallbacks that it does not need."""
        if not files:
            return nothing(self._shown.columns)
        condition = f" WHERE {where}" if where else ""
        return " UNION ALL ".join(
            f"SELECT {self._values(stored)} FROM {_parquet(folded, group)}{condition}"
            for stored, group in _by_columns(folded, files)
        )

    def _values(self, stored: Sequence[StoredColumn]) -> str:
        values = zip(cell_values(self._shown, stored), self._shape.cells, strict=True)
        return ", ".join(f"{value} AS {cell}" for value, cell in values)

    def _untouched(
        self, base: str, folded: Versions, files: Sequence[VersionFile], few: Few, boundary: Boundary
    ) -> str:
        """The folded rows whose keys no change has, found by their positions in the files if that costs less."""
        if not len(few.touched):
            return base
        found = chosen(files, boundary)
        names = {column.name.lower() for column in folded.stored}
        is_plain = len(self._shape.key_cells) == 1 and pa.types.is_integer(few.touched.schema.types[0])
        if not (found.asked or is_plain or names & {FILE, ROW}):
            positions = positions_of(few, folded, found.clean, self._shown)
            if positions is not None:
                return self._not_at(folded, found.clean, positions)
        touched = self._bind(few.touched)
        return f"SELECT base.* FROM ({base}) AS base ANTI JOIN {touched} AS touched ON {self._same('base', 'touched')}"

    def _not_at(self, folded: Versions, files: Sequence[VersionFile], positions: Mapping[str, Longs]) -> str:
        parts = []
        for stored, group in _by_columns(folded, files):
            places = [np.full(len(positions[file.name]), at, np.int64) for at, file in enumerate(group)]
            rows = [positions[file.name] for file in group]
            gone = self._bind(pa.table({"file": np.concatenate(places), "place": np.concatenate(rows)}))
            parts.append(
                f"SELECT {self._cells} FROM (SELECT {self._values(stored)}, {FILE} AS file, {ROW} AS place "
                f"FROM {_parquet(folded, group)}) AS rows "
                f"ANTI JOIN {gone} AS gone ON gone.file = rows.file AND gone.place = rows.place"
            )
        return " UNION ALL ".join(parts)

    def _completed(self, base: str, incomplete: pa.Table) -> str:
        """The rows that need unchanged TOAST values of folded rows."""
        rows = self._bind(incomplete)
        values = []
        for column in self._shape.columns:
            unsent = f"{FOLDED}{column.attnum}" in incomplete.column_names
            why = duckdb_text(f"column {column.name}: {NEVER_SENT}")
            for cell in column.cells:
                old = f"CASE WHEN old.found IS NULL THEN error({why}) ELSE old.{cell} END"
                chosen = f"CASE WHEN own.{FOLDED}{column.attnum} THEN {old} ELSE own.{cell} END"
                values.append(f"{chosen} AS {cell}" if unsent else f"own.{cell}")
        wanted = f"{rows} AS wanted ON {self._same('base', 'wanted', ITS)}"
        found = f"SELECT true AS found, base.* FROM ({base}) AS base SEMI JOIN {wanted}"
        joined = f"{rows} AS own LEFT JOIN ({found}) AS old ON {self._same('old', 'own', ITS)}"
        return f"SELECT {', '.join(values)} FROM {joined}"

    def _same(self, one: str, other: str, prefix: str = "") -> str:
        """The condition that two rows have the same key; see `shape.same_key`."""
        with_fallback = {cell for column in self._shape.of(self._shape.key) if column.fallback for cell in column.cells}
        return " AND ".join(
            f"{one}.{cell} {'IS NOT DISTINCT FROM' if cell in with_fallback else '='} {other}.{prefix}{cell}"
            for cell in self._shape.key_cells
        )

    def _summed(self, more: str, fewer: str) -> str:
        """The rows of `more` that equal none of `fewer` by a hash, and of the others the sums of equal ones.

        0.0 and -0.0 are equal in a group, so columns with floats are also grouped by their text.
        """
        cells, hashed = self._cells, f"hash({self._cells})"
        texts = [f"{cell}::VARCHAR" for cell in self._float_cells()]
        groups = ", ".join([*self._shape.cells, *texts])
        times = f"CASE WHEN sum(times) < 0 THEN error({duckdb_text(_FEWER)}) ELSE sum(times) END"
        return (
            f"SELECT {cells} FROM (WITH fewer AS MATERIALIZED ({fewer}), "
            f"hashes AS MATERIALIZED (SELECT DISTINCT {hashed} AS hashed FROM fewer), "
            f"more AS NOT MATERIALIZED (SELECT {cells}, {hashed} AS hashed FROM ({more})), "
            f"signed AS (SELECT {cells}, 1 AS times FROM more SEMI JOIN hashes USING (hashed) "
            f"UNION ALL SELECT {cells}, -1 FROM fewer) "
            f"SELECT {cells} FROM more ANTI JOIN hashes USING (hashed) "
            f"UNION ALL SELECT {cells} FROM (SELECT {cells}, unnest(range(CAST({times} AS BIGINT))) AS copy "
            f"FROM signed GROUP BY {groups}))"
        )

    def _float_cells(self) -> list[str]:
        return [f"v{column.attnum}" for column in self._shown.columns if _has_floats(column.type)]

    def _bind(self, rows: pa.Table) -> str:
        name = f"tidemark_{next(_NUMBERS)}"
        self.bound[name] = rows
        return name


def together_here(root: Fingerprint, parts: Sequence[tuple[Fingerprint, LocalRows]], types: Types) -> LocalRows:
    """Return the union of tables that have the root's columns by name, in any order, with other attnums or columns."""
    named = {name: column for column, name in shown_names(root.columns, types.version_num)}
    kinds = {name: decoding_of(each.type.oid, each.typmod, types).arrow for name, each in named.items()}
    matches = [
        {matching[column.name]: column for column in rows.columns if column.name in matching}
        for part, rows in parts
        for matching in [matched(root, part, types.version_num)]
    ]
    fallback = {name for match in matches for name, column in match.items() if column.fallback}
    columns = tuple(
        Shown(name, column.name, column.attnum, kinds[name], name in fallback, None) for name, column in named.items()
    )
    if any(match[name].type != kind for match in matches for name, kind in kinds.items()):
        raise EngineRefused(f"columns of {root.qualified} have other types in the tables below it", _ELSEWHERE)
    if not columns:
        raise EngineRefused(f"{root.qualified} has no columns", _ELSEWHERE)
    selects = [
        f"SELECT {', '.join(_renamed(column, match[column.name]) for column in columns)} FROM ({rows.query})"
        for (_, rows), match in zip(parts, matches, strict=True)
    ]
    bound = {name: table for _, rows in parts for name, table in rows.bound.items()}
    return LocalRows(columns, " UNION ALL ".join(selects) or nothing(columns), bound)


def _renamed(column: Shown, own: Shown) -> str:
    value = f"v{own.attnum} AS v{column.attnum}"
    if not column.fallback:
        return value
    return f"{value}, {f't{own.attnum}' if own.fallback else null_of(pa.string())} AS t{column.attnum}"


def nothing(columns: Sequence[Shown]) -> str:
    """Return a query for no row of these columns."""
    values = []
    for column in columns:
        values.append(f"{null_of(column.type)} AS v{column.attnum}")
        values += [f"{null_of(pa.string())} AS t{column.attnum}"] if column.fallback else []
    return f"SELECT {', '.join(values)} WHERE false"


def _has_floats(kind: pa.DataType) -> bool:
    return _has_floats(kind.value_type) if pa.types.is_list(kind) else bool(pa.types.is_floating(kind))


def _parquet(folded: Versions, files: Sequence[VersionFile]) -> str:
    paths = ", ".join(duckdb_text(folded.path(file)) for file in files)
    return f"read_parquet([{paths}], hive_partitioning = false, union_by_name = false)"


def _by_columns(
    folded: Versions, files: Sequence[VersionFile]
) -> list[tuple[tuple[StoredColumn, ...], list[VersionFile]]]:
    """Group files by the stored columns that they have."""
    if not any(column.text for column in folded.stored):
        return [(folded.stored, list(files))]
    groups: dict[tuple[StoredColumn, ...], list[VersionFile]] = {}
    for file in files:
        there = _names(folded.path(file))
        groups.setdefault(tuple(each for each in folded.stored if each.name in there), []).append(file)
    return list(groups.items())


@lru_cache(maxsize=10_000)
def _names(path: str) -> frozenset[str]:
    """Return the names of a file's columns; a file never changes."""
    return frozenset(pq.read_schema(path).names)
