"""What is read from the source while a target follows it: rows by their keys, and definitions of altered tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidemark.clock import Lsn
from tidemark.errors import SourceAltered, SourceBusy
from tidemark.pipeline.copy.snapshots import CopySnapshot, copy_snapshot
from tidemark.postgres.catalog import read_catalog
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.session import Session
from tidemark.postgres.shared import require_same
from tidemark.postgres.sqlstate import translated
from tidemark.schema.fingerprint import Effect, Fingerprint, compare
from tidemark.target.alterations import AlteredTable, ColumnText
from tidemark.target.differences import Name
from tidemark.target.statements import rows_at_source
from tidemark.target.tables import TargetTable

ATTEMPTS = 50
# The value of older rows is in an array: its text has another delimiter than that of text[] for a few types.
_COLUMN_TEXTS = """
    select a.attnum, format_type(a.atttypid, a.atttypmod),
           case when a.attcollation <> t.typcollation then quote_ident(n.nspname) || '.' || quote_ident(c.collname) end,
           pg_get_expr(d.adbin, d.adrelid),
           case when a.atthasmissing and t.typdelim = ',' then (a.attmissingval::text::text[])[1] end
    from pg_attribute a join pg_type t on t.oid = a.atttypid
    left join pg_collation c on c.oid = a.attcollation left join pg_namespace n on n.oid = c.collnamespace
    left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum and a.attgenerated = ''
    where a.attrelid = %s and a.attnum > 0 and not a.attisdropped
"""


@contextmanager
def exact_source(dsn: Dsn, log: Path) -> Iterator[CopySnapshot]:
    """A snapshot of the source whose position excludes no commit: it shows exactly the commits up to there.

    One that was taken while transactions committed may exclude some; then another one is taken.
    """
    for _ in range(ATTEMPTS):
        with copy_snapshot(dsn, log) as snapshot:
            if not snapshot.base.excluded:
                yield snapshot
                return
    raise SourceBusy(f"none of {ATTEMPTS} snapshots of the source was exactly as of one LSN", "Retry the command.")


class SourceRows:
    """Reads rows in a snapshot, of tables that must have these definitions in it."""

    def __init__(self, session: Session, definitions: Mapping[str, Fingerprint]) -> None:
        self._session, self._definitions = session, definitions
        self._found: dict[str, Fingerprint] | None = None

    def read(self, table: TargetTable, names: Sequence[Name]) -> list[tuple[str | None, ...]]:
        """Return the rows with these keys, or with these contents if the table has no key; values are texts."""
        self._require_unaltered(table)
        with translated(f"reading rows of {table.label} at the source"):
            return self._session.connection.execute(rows_at_source(table, names)).fetchall()

    def _require_unaltered(self, table: TargetTable) -> None:
        """Refuse a table that was altered: its rows in the snapshot may not be those that the stream describes."""
        if self._found is None:
            publications = {name for each in self._definitions.values() for name in each.publications}
            tables = (Fingerprint.of(each, publications) for each in read_catalog(self._session).tables)
            self._found = {each.qualified: each for each in tables}
        found = self._found.get(table.label)
        change = compare(self._definitions[table.label], found)
        if found is None or change.effect is not Effect.SAME:
            raise SourceAltered(
                f"table {table.label} at the target differs and cannot be repaired, because it was altered at the "
                f"source: {change.reasons[0] if change.reasons else 'its definition is another one'}",
                "Run `tidemark compare SOURCE TARGET` to list all differences, and undo them at the target.",
            )
        require_same(self._session, found)


def read_altered(session: Session, definition: Fingerprint) -> AlteredTable:
    """Read the columns of a table with this definition as SQL. Must run in the transaction that read the definition."""
    texts = {attnum: ColumnText(*row) for attnum, *row in session.rows(_COLUMN_TEXTS, [definition.oid])}
    (position,) = session.row("select pg_current_wal_insert_lsn()::text")
    return AlteredTable(definition, texts, Lsn.parse(position))


def read_definition(session: Session, oid: int, publications: Collection[str] = ()) -> AlteredTable | None:
    """Read the present definition of a table, with its memberships in these publications; None if it does not exist."""
    with session.transaction():
        found = next((table for table in read_catalog(session).tables if table.oid == oid), None)
        return read_altered(session, Fingerprint.of(found, publications)) if found is not None else None
