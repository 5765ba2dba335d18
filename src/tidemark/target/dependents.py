"""What a selection of tables leaves out of a schema: the other tables, and every object that depends on one of them.

The rule is that of `DROP … CASCADE`: a view of a table that is left out cannot be created, nor a function that returns
its rows. A selected table must be created whole, except for foreign keys that reference a table that is left out. If
its columns, defaults, checks, policies, rules or triggers depend on such a table, the selection is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tidemark.errors import InvalidValue
from tidemark.postgres.session import Session
from tidemark.quoting import double_quoted
from tidemark.schema.selection import Selection
from tidemark.schema.table import Catalog, Table

# Tables that belong to an extension are created by the extension.
_OTHERS = """
    select c.oid from pg_class c join pg_namespace n on n.oid = c.relnamespace
     where c.relkind in ('r', 'p', 'f') and c.relpersistence <> 't' and c.oid <> all(%s)
       and n.nspname <> 'information_schema' and not starts_with(n.nspname::text, 'pg_')
       and not exists (select from pg_depend d where d.classid = 'pg_catalog.pg_class'::regclass
                          and d.objid = c.oid and d.deptype = 'e')
"""

# An object that is internal to another, such as the rule of a view, takes that one with it.
_DEPENDENTS = """
    with recursive gone(classid, objid) as (
        select 'pg_catalog.pg_class'::regclass::oid, oid from unnest(%s::oid[]) oid
        union
        select found.classid, found.objid from gone cross join lateral (
            select d.classid, d.objid from pg_depend d
             where d.refclassid = gone.classid and d.refobjid = gone.objid and d.deptype <> 'e'
            union all
            select d.refclassid, d.refobjid from pg_depend d
             where d.classid = gone.classid and d.objid = gone.objid and d.deptype = 'i'
        ) found
    )
    select gone.classid, gone.objid, n.nspname, c.relname, c.relkind::text,
           coalesce((select adrelid from pg_attrdef where gone.classid = 'pg_catalog.pg_attrdef'::regclass
                        and oid = gone.objid),
                    (select polrelid from pg_policy where gone.classid = 'pg_catalog.pg_policy'::regclass
                        and oid = gone.objid),
                    (select ev_class from pg_rewrite where gone.classid = 'pg_catalog.pg_rewrite'::regclass
                        and oid = gone.objid),
                    (select tgrelid from pg_trigger where gone.classid = 'pg_catalog.pg_trigger'::regclass
                        and oid = gone.objid and not tgisinternal),
                    (select conrelid from pg_constraint where gone.classid = 'pg_catalog.pg_constraint'::regclass
                        and oid = gone.objid and contype <> 'f'),
                    case when gone.classid = 'pg_catalog.pg_class'::regclass then gone.objid end, 0)::bigint
      from gone left join pg_class c on gone.classid = 'pg_catalog.pg_class'::regclass and c.oid = gone.objid
                                        and c.relkind in ('r', 'p', 'f', 'v', 'm', 'S')
                left join pg_namespace n on n.oid = c.relnamespace
"""
_NAMES_PER_PATTERN = 150  # a query of pg_dump for a pattern takes as long for one name as for 150


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Objects that are left out, by catalog and OID, and the names of the relations and of the tables among them."""

    objects: frozenset[tuple[int, int]] = frozenset()
    relations: tuple[tuple[str, str], ...] = ()
    tables: tuple[tuple[str, str], ...] = ()

    def patterns(self) -> list[str]:
        """Return patterns for pg_dump's option --exclude-table that match exactly these tables.

        pg_dump would lock the tables, which requires SELECT; it locks nothing else.
        """
        names: dict[str, list[str]] = {}
        for schema, name in self.tables:
            names.setdefault(schema, []).append(double_quoted(name))
        return [
            f"{double_quoted(schema)}.({'|'.join(group[start : start + _NAMES_PER_PATTERN])})"
            for schema, group in names.items()
            for start in range(0, len(group), _NAMES_PER_PATTERN)
        ]


def selected_tables(catalog: Catalog, selection: Selection) -> frozenset[int] | None:
    """Return the OIDs of the selected tables, partitioned ones included; None if all are selected.

    The rule is that of `schema.selection.choose`: a table stands for its partitions, and one that is included also for
    the tables that inherit from it.
    """
    if not selection.take and not selection.leave:
        return None
    tables = {table.oid: table for table in catalog.tables}
    return frozenset(
        table.oid
        for table in catalog.tables
        if _is_taken(table, tables, selection) and not _is_left(table, tables, selection)
    )


def _is_taken(table: Table, tables: Mapping[int, Table], selection: Selection) -> bool:
    if not selection.take or any(pattern.matches(table) for pattern in selection.take):
        return True
    above = (tables.get(oid) for oid in (table.parent, *table.inherits) if oid is not None)
    return any(_is_taken(parent, tables, selection) for parent in above if parent is not None)


def _is_left(table: Table, tables: Mapping[int, Table], selection: Selection) -> bool:
    parent = tables.get(table.parent) if table.parent is not None else None
    matched = any(pattern.matches(table) for pattern in selection.leave)
    return matched or (parent is not None and _is_left(parent, tables, selection))


def read_left_out(session: Session, tables: Collection[int] | None) -> LeftOut:
    """Read what a selection of tables, by OID, leaves out; raise InvalidValue if a selected table depends on it."""
    if tables is None:
        return LeftOut()
    others = [oid for (oid,) in session.rows(_OTHERS, [list(tables)])]
    found = session.rows(_DEPENDENTS, [others])
    _require_whole(session, sorted({relation for *_, relation in found} & set(tables)))
    relations = sorted((schema, name, kind) for _, _, schema, name, kind, _ in found if name is not None)
    return LeftOut(
        frozenset((classid, oid) for classid, oid, *_ in found),
        tuple((schema, name) for schema, name, _ in relations),
        tuple((schema, name) for schema, name, kind in relations if kind in ("r", "p")),
    )


def _require_whole(session: Session, tables: list[int]) -> None:
    if tables:
        names = [name for (name,) in session.rows("select oid::regclass::text from unnest(%s::oid[]) oid", [tables])]
        raise InvalidValue(
            f"the selection includes {', '.join(names)} but not a table that its definition depends on",
            "Select its parent tables, and the tables that its columns, defaults, policies, rules and triggers use.",
        )
