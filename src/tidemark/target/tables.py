"""A table at the target, as far as changes depend on it: its columns, its key, and the columns of other constraints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from psycopg import sql

from tidemark.errors import ObjectMissing
from tidemark.postgres.session import Session
from tidemark.schema.fingerprint import Fingerprint

_COLUMNS = """
    with recursive bases(oid, base, typmod) as (
        select t.oid, t.oid, -1 from pg_type t
        union all
        select b.oid, t.typbasetype, t.typtypmod from bases b join pg_type t on t.oid = b.base where t.typtype = 'd'
    ), base as (
        select distinct on (b.oid) b.oid, b.base, b.typmod from bases b join pg_type t on t.oid = b.base
        where t.typtype <> 'd'
        order by b.oid
    )
    select n.nspname, c.relname, a.attname,
           format_type(a.atttypid, a.atttypmod),
           format_type(base.base, case when base.base = a.atttypid then a.atttypmod else base.typmod end),
           case when a.attcollation <> 0 then quote_ident(cn.nspname) || '.' || quote_ident(co.collname) end,
           a.attgenerated <> '', a.attidentity = 'a', a.attnum,
           case when a.attgenerated <> '' then array(
               select d.refobjsubid from pg_attrdef e join pg_depend d on d.objid = e.oid
               where e.adrelid = c.oid and e.adnum = a.attnum and d.classid = 'pg_attrdef'::regclass
                 and d.refclassid = 'pg_class'::regclass and d.refobjid = c.oid) else '{}' end,
           exists (select from pg_cast k where k.casttarget = base.base and k.castmethod = 'f'
                   and k.castsource = 'text'::regtype)
           and not exists (select from pg_cast k where k.casttarget = base.base and k.castsource = 'bpchar'::regtype),
           coalesce((
               select 'operator(' || quote_ident(opn.nspname) || '.' || op.oprname || ')'
               from pg_opclass oc join pg_am am on am.oid = oc.opcmethod and am.amname = 'btree'
               join pg_amop ao on ao.amopfamily = oc.opcfamily and ao.amopstrategy = 3
                                  and ao.amoplefttype = oc.opcintype and ao.amoprighttype = oc.opcintype
               join pg_operator op on op.oid = ao.amopopr join pg_namespace opn on opn.oid = op.oprnamespace
               where oc.opcdefault and oc.opcintype = base.base and opn.nspname <> 'pg_catalog'), '=')
    from unnest(%s::text[], %s::text[]) as wanted(schema, name)
    join pg_namespace n on n.nspname = wanted.schema
    join pg_class c on c.relnamespace = n.oid and c.relname = wanted.name and c.relkind in ('r', 'p')
    left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
    left join base on base.oid = a.atttypid
    left join pg_collation co on co.oid = a.attcollation
    left join pg_namespace cn on cn.oid = co.collnamespace
    order by n.nspname, c.relname, a.attnum
"""
_EXCLUSIVE = """
    select n.nspname, c.relname, i.indexrelid, i.indkey::int2[]::int[],
           coalesce((select array_agg(d.refobjsubid) from pg_depend d
                     where d.classid = 'pg_class'::regclass and d.objid = i.indexrelid
                       and d.refclassid = 'pg_class'::regclass and d.refobjid = i.indrelid), '{}') ||
           coalesce((select array_agg(a.attnum::int) from pg_constraint k, unnest(k.conkey) as a(attnum)
                     where k.conindid = i.indexrelid and k.conrelid = i.indrelid), '{}'),
           i.indpred is null and i.indexprs is null
    from unnest(%s::text[], %s::text[]) as wanted(schema, name)
    join pg_namespace n on n.nspname = wanted.schema
    join pg_class c on c.relnamespace = n.oid and c.relname = wanted.name
    join pg_index i on i.indrelid = c.oid and (i.indisunique or i.indisexclusion)
"""
_UNIQUE = """
    select array(select a.attname::text from unnest(i.indkey::int2[]) with ordinality as k(attnum, n)
                 join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum
                 where k.n <= i.indnkeyatts)
    from pg_index i join pg_class c on c.oid = i.indrelid join pg_namespace n on n.oid = c.relnamespace
    where n.nspname = %s and c.relname = %s
      and i.indisunique and i.indimmediate and i.indpred is null and i.indexprs is null
"""


@dataclass(frozen=True, slots=True)
class TargetColumn:
    """A column: its type for casts, and the type of a stage's column, which is the base type if it is a domain.

    If text is `cast` to the type by a function, that is not the input function of the type: `regclass` casts neither
    the text `-` nor the OID of a table that was dropped, which its output function prints.

    `equality` is the operator of indexes on the type, which sessions do not find by its name if it is in another
    schema than pg_catalog, as those of extensions are.
    """

    name: str
    type: str
    stored_type: str
    collation: str | None
    generated: bool
    always_identity: bool
    cast: bool = False
    equality: str = "="

    def equal(self, one: sql.Composable, other: sql.Composable) -> sql.Composed:
        """The condition that two values of the column are equal, as keys are."""
        return sql.SQL("{} {} {}").format(one, sql.SQL(self.equality), other)

    def of_text(self, text: sql.Composable) -> sql.Composed:
        """The value that the input function of the type reads from a text; `bpchar` has no cast of its own."""
        return sql.SQL("{}::bpchar::{}" if self.cast else "{}::{}").format(text, sql.SQL(self.type))


@dataclass(frozen=True, slots=True)
class TargetTable:
    """A table with the columns that the stream sends, in its order, some of which are the key.

    A value of an `exclusive` column may have to be unique, or exclude others: two rows cannot exchange such values by
    updates in place.
    """

    schema: str
    name: str
    columns: tuple[TargetColumn, ...]
    key: tuple[int, ...]
    exclusive: frozenset[int]

    @property
    def label(self) -> str:
        """`schema.table`, for messages."""
        return f"{self.schema}.{self.name}"

    @property
    def identifier(self) -> sql.Identifier:
        """The name for SQL."""
        return sql.Identifier(self.schema, self.name)

    @property
    def written(self) -> tuple[int, ...]:
        """The columns that are written: all that are not generated."""
        return tuple(at for at, column in enumerate(self.columns) if not column.generated)


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table as the target's catalog describes it. `exclusive` are the columns of each unique or exclusive index.

    `inputs` are the columns from which a generated column is computed.
    """

    columns: Mapping[str, TargetColumn]
    exclusive: Mapping[int, frozenset[str]]
    inputs: Mapping[str, frozenset[str]]

    def exclusive_beside(self, key: Iterable[str]) -> frozenset[str]:
        """The columns of unique and exclusion constraints, without those that only identify the row by its key."""
        wanted = frozenset(key)
        others = frozenset(name for names in self.exclusive.values() if names != wanted for name in names)
        return others.union(*(self.inputs.get(name, ()) for name in others))


def target_table(definition: Fingerprint, names: Sequence[str], found: FoundTable | None) -> TargetTable:
    """Return the table at the target with these columns; an error if it or one of them does not exist."""
    label = definition.qualified
    if found is None:
        raise ObjectMissing(f"table {label} does not exist at the target", "Create it, and retry the command.")
    missing = [name for name in names if name not in found.columns]
    if missing:
        raise ObjectMissing(
            f"table {label} at the target has no column {missing[0]}", "Add the column, and retry the command."
        )
    numbers = {column.attnum: column.name for column in definition.columns}
    others = found.exclusive_beside(numbers[attnum] for attnum in definition.key)
    return TargetTable(
        definition.schema,
        definition.name,
        tuple(found.columns[name] for name in names),
        tuple(names.index(numbers[attnum]) for attnum in definition.key),
        frozenset(at for at, name in enumerate(names) if name in others),
    )


def read_tables(session: Session, names: Iterable[tuple[str, str]]) -> dict[tuple[str, str], FoundTable]:
    """Read these tables, by schema and name; those that do not exist are missing from the result."""
    wanted = [list(each) for each in zip(*names, strict=True)] or [[], []]
    columns: dict[tuple[str, str], dict[str, TargetColumn]] = defaultdict(dict)
    numbers: dict[tuple[str, str], dict[int, str]] = defaultdict(dict)
    inputs: dict[tuple[str, str], dict[str, list[int]]] = defaultdict(dict)
    for schema, table, name, kind, stored, collation, generated, always, attnum, computed_from, *rest in session.rows(
        _COLUMNS, wanted
    ):
        if name is None:
            columns[schema, table] = {}
            continue
        columns[schema, table][name] = TargetColumn(name, kind, stored, collation, generated, always, *rest)
        numbers[schema, table][attnum] = name
        inputs[schema, table][name] = computed_from
    exclusive: dict[tuple[str, str], dict[int, frozenset[str]]] = defaultdict(dict)
    for schema, table, index, attnums, depending, plain in session.rows(_EXCLUSIVE, wanted):
        known = numbers[schema, table]
        whole_row = not plain and (0 in depending or not depending)
        concerned = set(known) if whole_row else {*attnums, *depending}
        exclusive[schema, table][index] = frozenset(known[each] for each in concerned if each in known)
    return {
        each: FoundTable(
            found,
            exclusive[each],
            {
                name: frozenset(numbers[each][number] for number in found_inputs if number in numbers[each])
                for name, found_inputs in inputs[each].items()
            },
        )
        for each, found in columns.items()
    }


def unique_columns(session: Session, table: TargetTable) -> list[tuple[int, ...]]:
    """Return the columns of each unique index whose conflicts can be found by equal values of written columns."""
    places = {table.columns[at].name: at for at in table.written}
    found = [names for (names,) in session.rows(_UNIQUE, [table.schema, table.name])]
    return [tuple(places[name] for name in names) for names in found if all(name in places for name in names)]
