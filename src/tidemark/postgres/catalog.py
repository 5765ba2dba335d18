"""Read the catalog with a few queries, which must run in one transaction so that they show one snapshot.

The queries read only catalog rows and call no function that prints an object: such functions show the current state
instead of the snapshot, and wait for locks on the object.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from tidemark.postgres.names import PREFIX
from tidemark.postgres.session import Session
from tidemark.schema.table import (
    Catalog,
    Child,
    Column,
    Generated,
    Key,
    Membership,
    Persistence,
    PgType,
    RelationKind,
    ReplicaIdentity,
    Table,
    TypePart,
)

_TABLES = """
    select c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
           c.relfilenode, c.relreplident::text,
           (select inhparent from pg_inherits where inhrelid = c.oid and c.relispartition and not inhdetachpending),
           c.relpartbound::text,
           array(select inhparent from pg_inherits where inhrelid = c.oid and not c.relispartition order by inhseqno),
           array(select k.oid from pg_inherits i join pg_class k on k.oid = i.inhrelid
                  where i.inhparent = c.oid and not i.inhdetachpending and k.relpersistence <> 't' order by k.oid),
           array(select s.nspname || '.' || k.relname
                   from pg_inherits i join pg_class k on k.oid = i.inhrelid
                        join pg_namespace s on s.oid = k.relnamespace
                  where i.inhparent = c.oid and not i.inhdetachpending and k.relpersistence <> 't' order by k.oid),
           c.relrowsecurity and not coalesce(r.rolsuper or r.rolbypassrls
               or not c.relforcerowsecurity and pg_has_role(r.oid, c.relowner, 'USAGE'), false),
           coalesce(has_schema_privilege(r.oid, n.oid, 'USAGE'), false),
           coalesce(has_table_privilege(r.oid, c.oid, 'SELECT'), false),
           pg_has_role(n.nspowner, 'USAGE'),
           pg_has_role(c.relowner, 'USAGE')
      from pg_class c join pg_namespace n on n.oid = c.relnamespace
           left join pg_roles r on r.rolname = coalesce(%s, current_user)
     where c.relkind in ('r', 'p', 'f')
       and c.relpersistence <> 't'
       and n.nspname not in ('pg_catalog', 'information_schema')
       and n.nspname not like 'pg\\_toast%%'
       and c.relrewrite = 0
     order by n.nspname collate "C", c.relname collate "C"
"""

_COLUMNS = """
    select a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated::text,
           case when a.attgenerated <> '' then md5(d.adbin::text) end,
           case when a.atthasmissing then a.attmissingval::text::varchar end,
           a.xmin::text::bigint
      from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
     where a.attrelid = any(%s) and a.attnum > 0 and not a.attisdropped
     order by a.attrelid, a.attnum
"""

# Which index can be the replica identity: RelationGetIndexList in PostgreSQL's relcache.c. A deferrable primary key
# cannot, and publishing updates of such a table makes them fail; nor can it be a key of the mirror, since inside a
# transaction two rows may have the same value.
_KEYS = """
    select i.indrelid, c.relname, i.indisprimary and i.indimmediate,
           i.indimmediate and (t.relreplident = 'd' and i.indisprimary or t.relreplident = 'i' and i.indisreplident),
           (i.indkey::int2[])[0:i.indnkeyatts - 1],
           coalesce((select oid from pg_constraint where conindid = i.indexrelid and contype = 'p'), 0)::bigint
      from pg_index i join pg_class c on c.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
     where i.indrelid = any(%s) and i.indisunique and i.indisvalid and i.indpred is null and i.indexprs is null
       and (i.indisprimary or i.indisreplident)
"""

_TYPES = """
    with recursive used(oid) as (
        select distinct atttypid from pg_attribute where attrelid = any(%s) and attnum > 0 and not attisdropped
        union
        select part.oid from used join pg_type t on t.oid = used.oid cross join lateral (
            select t.typelem where t.typsubscript = 'pg_catalog.array_subscript_handler'::regproc
            union all select t.typbasetype where t.typtype = 'd'
            union all select a.atttypid from pg_attribute a
                       where a.attrelid = t.typrelid and t.typtype = 'c' and a.attnum > 0 and not a.attisdropped
            union all select r.rngsubtype from pg_range r where r.rngtypid = t.oid
            union all select r.rngtypid from pg_range r where r.rngmultitypid = t.oid
        ) part(oid)
    )
    select t.oid, n.nspname, t.typname, t.typtype::text,
           coalesce((select jsonb_agg(jsonb_build_array(p.attnum, p.name, p.oid, p.typmod) order by p.attnum) from (
               select 0 as attnum, '' as name, t.typelem::bigint as oid, -1 as typmod
                where t.typsubscript = 'pg_catalog.array_subscript_handler'::regproc
               union all select 0, '', t.typbasetype::bigint, t.typtypmod where t.typtype = 'd'
               union all select a.attnum, a.attname, a.atttypid::bigint, a.atttypmod from pg_attribute a
                          where a.attrelid = t.typrelid and t.typtype = 'c' and a.attnum > 0 and not a.attisdropped
               union all select 0, '', r.rngsubtype::bigint, -1 from pg_range r where r.rngtypid = t.oid
               union all select 0, '', r.rngtypid::bigint, -1 from pg_range r where r.rngmultitypid = t.oid
           ) p), '[]'),
           coalesce((select jsonb_agg(jsonb_build_array(e.oid::bigint, e.enumlabel) order by e.enumsortorder)
                       from pg_enum e where e.enumtypid = t.oid), '[]'),
           coalesce((select jsonb_agg(jsonb_build_array(row.number, row.xmin) order by row.number) from (
               select e.oid::bigint as number, e.xmin::text::bigint as xmin from pg_enum e where e.enumtypid = t.oid
               union all select a.attnum, a.xmin::text::bigint from pg_attribute a
                          where a.attrelid = t.typrelid and t.typtype = 'c' and a.attnum > 0
           ) row), '[]')
      from used join pg_type t on t.oid = used.oid join pg_namespace n on n.oid = t.typnamespace
"""


_MEMBERSHIPS = """
    select r.prrelid, p.pubname, concat_ws('.', p.oid, p.xmin, r.oid, r.xmin)
      from pg_publication p join pg_publication_rel r on r.prpubid = p.oid
     where r.prrelid = any(%s) and starts_with(p.pubname::text, %s)
     order by p.pubname
"""


def read_catalog(session: Session, role: str | None = None) -> Catalog:
    """Read every table, with the privileges of `role` or the connected role. Must run in `session.transaction()`."""
    with session.as_stored():
        catalog = _read(session, role)
    return catalog if session.has_encoding else Catalog(tuple(map(_checked, catalog.tables)))


def _read(session: Session, role: str | None) -> Catalog:
    tables = session.rows(_TABLES, [role])
    oids = [row[0] for row in tables]
    types = _types(session.rows(_TYPES, [oids]))
    columns: dict[int, list[Column]] = defaultdict(list)
    for oid, *row in session.rows(_COLUMNS, [oids]):
        columns[oid].append(_column(types, *row))
    primary: dict[int, Key] = {}
    identity: dict[int, Key] = {}
    marked: dict[int, tuple[int, ...]] = {}
    for oid, index, is_primary, is_identity, attnums, constraint in session.rows(_KEYS, [oids]):
        key = Key(printed(index), tuple(attnums), constraint)
        marked |= {oid: key.attnums} if is_identity else {}
        if _is_streamed(key, columns[oid], session.version_num):
            primary |= {oid: key} if is_primary else {}
            identity |= {oid: key} if is_identity else {}
    memberships: dict[int, list[Membership]] = defaultdict(list)
    for oid, publication, token in session.rows(_MEMBERSHIPS, [oids, PREFIX]):
        memberships[oid].append(Membership(publication, token))
    return Catalog(
        tuple(
            _table(
                row,
                columns[row[0]],
                marked.get(row[0], ()),
                primary.get(row[0]),
                identity.get(row[0]),
                memberships[row[0]],
            )
            for row in tables
        )
    )


def _is_streamed(key: Key, columns: list[Column], version_num: int) -> bool:
    """Whether the stream contains the key: before version 18 it omits generated columns."""
    generated = {column.attnum for column in columns if column.generated is not Generated.NO}
    return version_num >= 180000 or generated.isdisjoint(key.attnums)


def _table(
    row: Any,
    columns: list[Column],
    marked: tuple[int, ...],
    primary: Key | None,
    identity: Key | None,
    memberships: list[Membership],
) -> Table:
    oid, schema, name, kind, persistence, filenode, replident, parent, bound, inherits, children, called, *rights = row
    rls, usable, selectable, schema_owned, owned = rights
    return Table(
        oid=oid,
        schema=schema,
        name=name,
        kind=RelationKind(kind),
        persistence=Persistence(persistence),
        filenode=filenode,
        replica_identity=ReplicaIdentity(replident),
        marked=None if ReplicaIdentity(replident) is ReplicaIdentity.FULL else marked,
        identity_key=identity,
        primary_key=primary,
        columns=tuple(columns),
        parent=parent,
        bound=bound,
        inherits=tuple(inherits),
        children=tuple(Child(child, printed(each)) for child, each in zip(children, called, strict=True)),
        memberships=tuple(memberships),
        row_security=rls,
        schema_usable=usable,
        selectable=selectable,
        schema_owned=schema_owned,
        owned=owned,
    )


def _checked(table: Table) -> Table:
    """Set the flaw of a table in a SQL_ASCII database if its names or defaults prevent mirroring."""
    flaw = _flaw(table)
    if flaw is None:
        return table
    columns = tuple(map(_printed_column, table.columns))
    return replace(table, schema=printed(table.schema), name=printed(table.name), columns=columns, flaw=flaw)


def _flaw(table: Table) -> str | None:
    """Return which name, or which missing-value default, is not valid UTF-8."""
    names = {"the name of its schema": table.schema, "its name": table.name}
    names |= {f"the name of column {printed(column.name)}": column.name for column in table.columns}
    names |= {f"the default of column {printed(column.name)}": column.missing or "" for column in table.columns}
    bad = [f"{what}, {printed(text)}," for what, text in names.items() if printed(text) != text]
    return f"{bad[0]} is not valid UTF-8" if bad else None


def _printed_column(column: Column) -> Column:
    missing = None if column.missing is None else printed(column.missing)
    return replace(column, name=printed(column.name), missing=missing)


def printed(text: str) -> str:
    r"""Return a text in which bytes that are not UTF-8 are escaped as `\xff`."""
    return text if text.isascii() else text.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _column(
    types: dict[int, PgType],
    attnum: int,
    name: str,
    type_oid: int,
    typmod: int,
    not_null: bool,
    generated: str,
    expression: str | None,
    missing: str | None,
    touched: int,
) -> Column:
    value = None if missing is None else only_element(missing)
    kind = Generated(generated)
    return Column(attnum, name, types[type_oid], typmod, not_null, kind, expression, value, touched)


def only_element(array: str) -> str:
    """Return the element of a one-element array, for any delimiter of the element type: `{"a b"}` is `a b`."""
    inner = array[1:-1]
    if not inner.startswith('"'):
        return inner
    result, escaped = [], False
    for char in inner[1:-1]:
        if char == "\\" and not escaped:
            escaped = True
        else:
            result.append(char)
            escaped = False
    return "".join(result)


def _types(rows: list[Any]) -> dict[int, PgType]:
    """Build types with their parts resolved. A type cannot contain itself, so the recursion ends."""
    described = {row[0]: row for row in rows}
    built: dict[int, PgType] = {}

    def build(oid: int) -> PgType:
        if oid not in built:
            _, schema, name, kind, parts, labels, touched = described[oid]
            built[oid] = PgType(
                oid,
                printed(f"{schema}.{name}"),
                kind,
                tuple(TypePart(n, printed(part), build(inner), typmod) for n, part, inner, typmod in parts),
                tuple((label_oid, printed(label)) for label_oid, label in labels),
                tuple((number, xmin) for number, xmin in touched),
            )
        return built[oid]

    for oid in described:
        build(oid)
    return built
