"""How the columns of a table are carried from the source to the target: which ones, and in binary format or as text.

Binary format is used if the target stores the same value for the same bytes. Arrays and composite types contain the
OIDs of their parts, which differ between databases; PostgreSQL 14 and later ignore them for types of users, and the
labels of an enum are sent as text. These types are carried as text:

- a type without a send function at the source or a receive function at the target;
- `regclass` and the other types whose binary form is the OID of an object, and whose text is its name;
- `int2vector` and `oidvector`, whose receive functions reject an empty vector;
- `interval`, if the source has infinite intervals (version 17) and the target does not: it would read the same bytes
  as a finite interval, and rejects the text.

Generated columns are computed by the target. Values of identity columns are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from tidemark.errors import TargetTableUnfit, UnsupportedServer
from tidemark.pipeline.copy.parts import Part
from tidemark.pipeline.copy.reading import PartQuery
from tidemark.postgres.catalog import printed
from tidemark.postgres.quoted import statement
from tidemark.postgres.session import NO_ENCODING, Session
from tidemark.postgres.sqlstate import translated
from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Column, Generated, Persistence, PgType, RelationKind, Table

_ARRAYS_IGNORE_OIDS = 140000
_INFINITE_INTERVALS = 170000
_FIRST_GENERATED_OID = 10000  # FirstGenbkiObjectId: built-in types below it have the same OID in all databases
_INTERVAL, _NAME = "pg_catalog.interval", "pg_catalog.name"
_VECTORS = frozenset({"pg_catalog.int2vector", "pg_catalog.oidvector"})
_UTF8 = "UTF8"
_SENT = "select oid from pg_type where typsend <> 0 and typreceive <> 0"
_SHOWN = """
    select distinct atttypid, atttypmod, format_type(atttypid, atttypmod)::varchar
      from pg_attribute where attrelid >= 16384 and attnum > 0 and not attisdropped
"""


@dataclass(frozen=True, slots=True)
class CopyServer:
    """What the form of values depends on at one of the servers.

    `sent` are the OIDs of types with send and receive functions; `shown` are the texts of types by OID and modifier.
    """

    version_num: int
    encoding: str
    sent: frozenset[int]
    shown: Mapping[tuple[int, int], str]

    def text_of(self, column: Column) -> str:
        """The type of a column as SQL."""
        return self.shown.get((column.type.oid, column.typmod), column.type.name)


@dataclass(frozen=True, slots=True)
class CarriedTable:
    """A table of the source, the columns that are copied, and the table of the target, which has the same name."""

    fingerprint: Fingerprint
    columns: tuple[Column, ...]
    binary: bool
    target_oid: int
    target_unlogged: bool

    @property
    def label(self) -> str:
        """`schema.table`, for messages."""
        return self.fingerprint.qualified

    @property
    def name(self) -> sql.Identifier:
        """The name, quoted."""
        return sql.Identifier(self.fingerprint.schema, self.fingerprint.name)

    def query(self, part: Part, condition: sql.Composable | None = None) -> PartQuery:
        """The query that reads a part at the source, all of it or the rows that meet a condition."""
        names = tuple(column.name for column in self.columns)
        shown = tuple(map(sql.Identifier, names))
        return PartQuery(self.fingerprint, part, names, shown, condition, binary=self.binary)

    def copy_in(self, *, freeze: bool) -> sql.Composed:
        """The statement that writes a part at the target."""
        names = sql.SQL(", ").join(sql.Identifier(column.name) for column in self.columns)
        listed = sql.SQL(" ({})").format(names) if self.columns else sql.SQL("")
        options = "binary" if self.binary else "text"
        return sql.SQL("copy {}{} from stdin (format {})").format(
            self.name, listed, sql.SQL(f"{options}, freeze" if freeze else options)
        )


def read_server(session: Session) -> CopyServer:
    """Read what the form of values depends on. Must run in a transaction."""
    with translated("reading the types of a database"), session.as_stored():
        sent = frozenset(oid for (oid,) in session.connection.execute(_SENT))
        shown = {(oid, typmod): printed(text) for oid, typmod, text in session.connection.execute(_SHOWN)}
    encoding = session.connection.info.parameter_status("server_encoding") or NO_ENCODING
    return CopyServer(session.version_num, encoding, sent, shown)


def require_encodings(source: CopyServer, target: CopyServer) -> None:
    """Raise UnsupportedServer unless every text has one form at the target.

    Bytes of a SQL_ASCII database have no encoding: a target with UTF8 rejects those that are not UTF-8. A target with
    SQL_ASCII would count bytes as characters, and so cut spaces off values of `char(n)` and `varchar(n)`.
    """
    pair = (source.encoding, target.encoding)
    if NO_ENCODING in pair and pair not in ((NO_ENCODING, NO_ENCODING), (NO_ENCODING, _UTF8)):
        wanted = _UTF8 if source.encoding == NO_ENCODING else source.encoding
        raise UnsupportedServer(
            f"the source database has encoding {source.encoding}, and the target database has {target.encoding}",
            f"Create the target database with `create database NAME template template0 encoding '{wanted}'`.",
        )


def carried_columns(
    table: Fingerprint, found: Table | None, source: CopyServer, target: CopyServer, *, with_key: bool = False
) -> CarriedTable:
    """How the columns of a table are carried; `found` is the table of that name at the target.

    With `with_key`, generated columns of the key are carried too: they identify the row. Raises TargetTableUnfit if the
    target has no such table, or one whose columns or types differ.
    """
    label = table.qualified
    if found is None:
        dump = f"pg_dump --schema-only --table='{label}' SOURCE | psql TARGET"
        raise TargetTableUnfit(f"table {label} does not exist at the target", f"Create it with `{dump}`.")
    if found.kind is not RelationKind.TABLE:
        kind = found.kind.name.lower()
        raise TargetTableUnfit(f"table {label} is a {kind} table at the target", f"Run `drop {_kind(found)} {label}`.")
    needed = table.key if with_key else ()
    pairs = [
        (ours, other)
        for ours, other in _pairs(table, found, source, target)
        if ours.generated is Generated.NO or ours.attnum in needed
    ]
    columns = tuple(ours for ours, _ in pairs)
    binary = all(_is_same_in_binary(a.type, b.type, source, target) for a, b in pairs)
    if not binary:
        _require_whole_names(label, columns, source, target)
    unlogged = found.persistence is Persistence.UNLOGGED
    if unlogged and table.persistence is not Persistence.UNLOGGED:
        fix = statement("alter table {} set logged", sql.Identifier(table.schema, table.name))
        raise TargetTableUnfit(
            f"table {label} of the target is unlogged, and that of the source is not: a crash would empty it",
            f"Run `{fix}` at the target.",
        )
    return CarriedTable(table, columns, binary, found.oid, unlogged)


def _kind(table: Table) -> str:
    return "foreign table" if table.kind is RelationKind.FOREIGN else "table"


def _pairs(table: Fingerprint, found: Table, source: CopyServer, target: CopyServer) -> list[tuple[Column, Column]]:
    """Every column of the source with that of the target."""
    theirs = {column.name: column for column in found.columns}
    pairs = []
    for ours in table.columns:
        other = theirs.pop(ours.name, None)
        if other is None:
            how = f"lacks column {ours.name!r}"
            raise _differs(table, ours.name, how, f"add column {{}} {source.text_of(ours)}{_generated(ours)}")
        if (ours.generated is Generated.NO) != (other.generated is Generated.NO):
            raise _differs_in_generation(table, ours)
        if not same_type(ours.type, other.type) or ours.typmod != other.typmod:
            raise _differs_in_type(table, ours, source.text_of(ours), target.text_of(other))
        pairs.append((ours, other))
    for extra in theirs:
        raise _differs(table, extra, f"has a column {extra!r} that the source does not have", "drop column {}")
    return pairs


def _generated(column: Column) -> str:
    return "" if column.generated is Generated.NO else " generated always as (EXPRESSION) stored"


def _differs_in_generation(table: Fingerprint, column: Column) -> TargetTableUnfit:
    if column.generated is Generated.NO:
        how = f"computes column {column.name!r}, which is not generated at the source"
        return _differs(table, column.name, how, "alter column {} drop expression")
    how = f"does not compute column {column.name!r}, which is generated at the source"
    return _differs(table, column.name, how, "drop column {}")


def _differs_in_type(table: Fingerprint, column: Column, wanted: str, found: str) -> TargetTableUnfit:
    if wanted != found:
        how = f"has type {found} for column {column.name!r}, which is {wanted} at the source"
        return _differs(table, column.name, how, f"alter column {{0}} type {wanted} using {{0}}::text::{wanted}")
    return TargetTableUnfit(
        f"type {wanted} of column {column.name!r} of table {table.qualified} is defined differently at the target",
        f"Change its labels or attributes with `alter type {wanted} …` at the target, or drop and create it.",
    )


def _differs(table: Fingerprint, column: str, how: str, change: str) -> TargetTableUnfit:
    quoted = sql.Identifier(column).as_string(None)
    name = sql.Identifier(table.schema, table.name).as_string(None)
    fix = f"alter table {name} {change.format(quoted)}"
    return TargetTableUnfit(f"table {table.qualified} of the target {how}", f"Run `{fix}` at the target.")


def same_type(ours: PgType, other: PgType) -> bool:
    """Whether two types of different databases have the same definition, down to their parts and labels."""
    return (
        (ours.name, ours.kind, [label for _, label in ours.labels], len(ours.parts))
        == (other.name, other.kind, [label for _, label in other.labels], len(other.parts))
    ) and all(
        a.name == b.name and a.typmod == b.typmod and same_type(a.type, b.type)
        for a, b in zip(ours.parts, other.parts, strict=True)
    )


def _is_same_in_binary(ours: PgType, other: PgType, source: CopyServer, target: CopyServer) -> bool:
    return not ours.follows_names and all(
        a.oid in source.sent
        and b.oid in target.sent
        and a.name not in _VECTORS
        and (a.name != _INTERVAL or _has_infinite_intervals(target) or not _has_infinite_intervals(source))
        and _accepts_parts(a, b, target)
        for a, b in zip(ours.whole(), other.whole(), strict=True)
    )


def can_stream_binary(source_version_num: int, target_version_num: int) -> bool:
    """Whether a binary stream has the same values at the target; it has no types whose form depends on the server."""
    lost = source_version_num >= _INFINITE_INTERVALS > target_version_num
    return target_version_num >= _ARRAYS_IGNORE_OIDS and not lost


def _has_infinite_intervals(server: CopyServer) -> bool:
    return server.version_num >= _INFINITE_INTERVALS


def _accepts_parts(ours: PgType, other: PgType, target: CopyServer) -> bool:
    """Whether `array_recv` and `record_recv` accept the OIDs that the source sends for the parts of a type."""
    return all(
        a.type.oid == b.type.oid
        or (
            target.version_num >= _ARRAYS_IGNORE_OIDS
            and (a.type.oid >= _FIRST_GENERATED_OID or b.type.oid >= _FIRST_GENERATED_OID)
        )
        for a, b in zip(ours.parts, other.parts, strict=True)
    )


def _require_whole_names(label: str, columns: Sequence[Column], source: CopyServer, target: CopyServer) -> None:
    """Raise TargetTableUnfit if the target would cut values off, as the input function of `name` does at 63 bytes."""
    if source.encoding != target.encoding and _NAME in set(_names(columns)):
        raise TargetTableUnfit(
            f"table {label} has a column of type name and one that is copied as text, and the encodings "
            f"{source.encoding} and {target.encoding} differ",
            f"Create the target database with encoding {source.encoding}, or exclude the table.",
        )


def _names(columns: Sequence[Column]) -> Iterator[str]:
    return (each.name for column in columns for each in column.type.whole())
