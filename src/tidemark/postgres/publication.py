"""Publications: the required state, the actual state, the differences, and the SQL that corrects them.

Table lists are always explicit. `FOR ALL TABLES` would publish a table without a replica identity, and from then on the
application's own UPDATE and DELETE on it fail. Such tables belong to a second publication, of inserts and truncates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psycopg import sql

from tidemark.postgres.names import MirrorNames, require_ours
from tidemark.postgres.session import Session
from tidemark.schema.table import Table

ALL_OPERATIONS = ("insert", "update", "delete", "truncate")
INSERT_OPERATIONS = ("insert", "truncate")
STORED = "s"
PRINT_SETUP = "Run `tidemark setup SOURCE --print` and have the owner of the database run the SQL that it prints."


@dataclass(frozen=True, slots=True)
class WantedPublication:
    """The required state of a publication. `generated` requests stored generated columns (PostgreSQL 18 and later)."""

    name: str
    tables: tuple[Table, ...]
    operations: tuple[str, ...]
    generated: bool


@dataclass(frozen=True, slots=True)
class Published:
    """The actual state of a publication."""

    name: str
    owned: bool
    all_tables: bool
    schemas: int
    operations: tuple[str, ...]
    via_root: bool
    generated: bool
    tables: frozenset[int]
    filtered: frozenset[int]


def wanted(names: MirrorNames, tables: Iterable[Table], version_num: int) -> tuple[WantedPublication, ...]:
    """Return the two publications of a mirror. A publication without tables must not exist."""
    listed = tuple(tables)
    whole = tuple(table for table in listed if table.identifies_rows)
    partial = tuple(table for table in listed if not table.identifies_rows)
    generated = version_num >= 180000
    return (
        WantedPublication(names.publication, whole, ALL_OPERATIONS, generated),
        WantedPublication(names.inserts_publication, partial, INSERT_OPERATIONS, generated),
    )


def differences(want: WantedPublication, found: Published | None) -> tuple[str, ...]:
    """Return the differences between a publication and its required state."""
    if found is None:
        return (f"publication {want.name} does not exist",) if want.tables else ()
    if not want.tables:
        return (f"publication {want.name} exists and has no table to publish",)
    return tuple(_differences(want, found))


def _differences(want: WantedPublication, found: Published) -> Iterable[str]:
    yield from omissions(found, want.operations, generated=want.generated)
    if extra_operations := [each for each in found.operations if each not in want.operations]:
        yield f"publication {want.name} publishes {', '.join(extra_operations)}"
    missing = [table.qualified for table in want.tables if table.oid not in found.tables]
    if missing:
        yield f"publication {want.name} does not include {', '.join(missing)}"
    extra = found.tables - {table.oid for table in want.tables}
    if extra:
        oids = ", ".join(map(str, sorted(extra)))
        yield f"publication {want.name} includes tables that are not selected (oid {oids})"


def omissions(found: Published, operations: Sequence[str], *, generated: bool) -> Iterable[str]:
    """Return the changes of its tables that a publication omits or sends under the name of another table."""
    publication = f"publication {found.name}"
    if found.all_tables or found.schemas:
        yield f"{publication} is for {'all tables' if found.all_tables else 'whole schemas'}, not for a list of tables"
    missing = [operation for operation in operations if operation not in found.operations]
    if missing:
        yield f"{publication} does not publish {', '.join(missing)}"
    if found.via_root:
        yield f"{publication} publishes partitions as their partitioned table (publish_via_partition_root)"
    if generated and not found.generated:
        yield f"{publication} does not publish stored generated columns"
    if found.filtered:
        yield f"{publication} has column lists or row filters"


def repair_statements(want: WantedPublication, found: Published | None) -> tuple[sql.Composed, ...]:
    """Return the smallest list of statements that bring the publication into the required state."""
    name = sql.Identifier(require_ours(want.name))
    if found is not None and (found.all_tables or not want.tables):
        return (drop_statement(want.name), *repair_statements(want, None))
    if not want.tables:
        return ()
    if found is None:
        statement = "create publication {} for table {} with ({})"
        return (sql.SQL(statement).format(name, _list(want.tables), _options(want)),)
    statements = []
    if found.schemas or found.filtered or found.tables - {table.oid for table in want.tables}:
        statements.append(sql.SQL("alter publication {} set table {}").format(name, _list(want.tables)))
    elif added := [table for table in want.tables if table.oid not in found.tables]:
        statements.append(sql.SQL("alter publication {} add table {}").format(name, _list(added)))
    # After the tables: PostgreSQL rejects publish_via_partition_root = false while row filters exist.
    if (set(found.operations), found.via_root, found.generated) != (set(want.operations), False, want.generated):
        statements.append(sql.SQL("alter publication {} set ({})").format(name, _options(want)))
    return tuple(statements)


def drop_statement(name: str) -> sql.Composed:
    """Return the statement that drops one of Tidemark's publications."""
    return sql.SQL("drop publication if exists {}").format(sql.Identifier(require_ours(name)))


def _list(tables: Sequence[Table]) -> sql.Composed:
    """List each table with ONLY: otherwise a parent table would include the tables that inherit from it."""
    return sql.SQL(", ").join(sql.SQL("only {}").format(sql.Identifier(table.schema, table.name)) for table in tables)


def _options(want: WantedPublication) -> sql.Composed:
    options = [
        sql.SQL("publish = {}").format(sql.Literal(", ".join(want.operations))),
        sql.SQL("publish_via_partition_root = false"),
    ]
    if want.generated:
        options.append(sql.SQL("publish_generated_columns = stored"))
    return sql.SQL(", ").join(options)


def read_publication(session: Session, name: str) -> Published | None:
    """Read one of Tidemark's publications; return None if it does not exist."""
    rows = session.rows(_PUBLICATION, [require_ours(name)])
    if not rows:
        return None
    name, owned, every, via_root, generated, *flags, tables, filtered = rows[0]
    schemas = session.row(_SCHEMAS, [name])[0] if session.version_num >= 150000 else 0
    return Published(
        name=name,
        owned=owned,
        all_tables=every,
        schemas=schemas,
        operations=tuple(operation for operation, on in zip(ALL_OPERATIONS, flags, strict=True) if on),
        via_root=via_root,
        generated=generated == STORED,
        tables=frozenset(tables),
        filtered=frozenset(filtered),
    )


# Columns that do not exist in every version are read through to_jsonb, which returns null for them.
_PUBLICATION = """
    select pubname, pg_has_role(pubowner, 'USAGE'), puballtables, pubviaroot, to_jsonb(p) ->> 'pubgencols',
           pubinsert, pubupdate, pubdelete, pubtruncate,
           array(select prrelid from pg_publication_rel where prpubid = p.oid),
           array(select prrelid from pg_publication_rel r where prpubid = p.oid
                  and (to_jsonb(r) ->> 'prattrs' is not null or to_jsonb(r) ->> 'prqual' is not null))
      from pg_publication p where pubname = %s
"""
_SCHEMAS = """
    select count(*)::int from pg_publication_namespace n join pg_publication p on p.oid = n.pnpubid where pubname = %s
"""


def read_marks(session: Session, names: Iterable[str]) -> dict[str, str]:
    """Return marks that change if and only if a publication, or a table's membership in it, is altered or recreated.

    The keys are the publication's name, and that name with the table's oid. A mark consists of the oid and xmin of the
    catalog row and, for a publication, its owner. pgoutput evaluates the publication as of each change: changes that it
    omitted for a while are missing from the stream, even if the publication is correct now.
    """
    return dict(session.rows(_MARKS, [list(names)] * 2))


def may_have_left_out(before: str, after: str) -> bool:
    """Whether changes may be missing because of what happened to a publication between two of its marks.

    A change of owner also changes the row's xmin but omits nothing. If the publication was in addition altered and
    restored without a check in between, that cannot be distinguished from the change of owner alone.
    """
    old_oid, _, *old_owner = before.split("/")
    new_oid, _, *new_owner = after.split("/")
    return before != after and (old_oid != new_oid or old_owner == new_owner)


_MARKS = """
    select pubname::text, oid || '/' || xmin || '/' || pubowner from pg_publication where pubname = any(%s)
    union all
    select p.pubname || ' oid ' || r.prrelid, r.oid || '/' || r.xmin
      from pg_publication_rel r join pg_publication p on p.oid = r.prpubid where p.pubname = any(%s)
"""
