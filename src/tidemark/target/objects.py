"""The objects of a database by identity: what an archive contains at the source, and what exists at the target.

OIDs differ between databases. PostgreSQL's own identity of an object, such as `fk on app.orders`, does not, and two
objects of one type never share it. So a stage that was interrupted is continued by identity, and verified by it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tidemark.errors import TableChanged
from tidemark.postgres.session import Session
from tidemark.target.stages import CATALOGS, Entry

_OWNED = """
    select 'pg_catalog.pg_class'::regclass::oid as classid, oid, relowner as owner, relnamespace as schema from pg_class
    union all select 'pg_catalog.pg_proc'::regclass, oid, proowner, pronamespace from pg_proc
    union all select 'pg_catalog.pg_type'::regclass, oid, typowner, typnamespace from pg_type where typisdefined
    union all select 'pg_catalog.pg_namespace'::regclass, oid, nspowner, 0 from pg_namespace
    union all select 'pg_catalog.pg_collation'::regclass, oid, collowner, collnamespace from pg_collation
    union all select 'pg_catalog.pg_conversion'::regclass, oid, conowner, connamespace from pg_conversion
    union all select 'pg_catalog.pg_operator'::regclass, oid, oprowner, oprnamespace from pg_operator
    union all select 'pg_catalog.pg_opclass'::regclass, oid, opcowner, opcnamespace from pg_opclass
    union all select 'pg_catalog.pg_opfamily'::regclass, oid, opfowner, opfnamespace from pg_opfamily
    union all select 'pg_catalog.pg_ts_config'::regclass, oid, cfgowner, cfgnamespace from pg_ts_config
    union all select 'pg_catalog.pg_ts_dict'::regclass, oid, dictowner, dictnamespace from pg_ts_dict
    union all select 'pg_catalog.pg_statistic_ext'::regclass, oid, stxowner, stxnamespace from pg_statistic_ext
    union all select 'pg_catalog.pg_language'::regclass, oid, lanowner, 0 from pg_language
    union all select 'pg_catalog.pg_foreign_data_wrapper'::regclass, oid, fdwowner, 0 from pg_foreign_data_wrapper
    union all select 'pg_catalog.pg_foreign_server'::regclass, oid, srvowner, 0 from pg_foreign_server
    union all select 'pg_catalog.pg_event_trigger'::regclass, oid, evtowner, 0 from pg_event_trigger
    union all select 'pg_catalog.pg_extension'::regclass, oid, extowner, 0 from pg_extension
"""

_UNOWNED = """
    union all select 'pg_catalog.pg_constraint'::regclass, oid, 0, 0 from pg_constraint
    union all select 'pg_catalog.pg_attrdef'::regclass, oid, 0, 0 from pg_attrdef
    union all select 'pg_catalog.pg_rewrite'::regclass, oid, 0, 0 from pg_rewrite
    union all select 'pg_catalog.pg_trigger'::regclass, oid, 0, 0 from pg_trigger where not tgisinternal
    union all select 'pg_catalog.pg_policy'::regclass, oid, 0, 0 from pg_policy
    union all select 'pg_catalog.pg_cast'::regclass, oid, 0, 0 from pg_cast
    union all select 'pg_catalog.pg_am'::regclass, oid, 0, 0 from pg_am
    union all select 'pg_catalog.pg_ts_parser'::regclass, oid, 0, 0 from pg_ts_parser
    union all select 'pg_catalog.pg_ts_template'::regclass, oid, 0, 0 from pg_ts_template
    union all select 'pg_catalog.pg_transform'::regclass, oid, 0, 0 from pg_transform
    union all select 'pg_catalog.pg_default_acl'::regclass, oid, 0, 0 from pg_default_acl
"""

# The objects of an archive: identity, owner, the schema's owner, the table that the object is a part of, and whether it
# is a unique index of a table, a view's rule, an object that only a superuser can create; the parent of a partition.
_IN_ARCHIVE = f"""
    select e.dump_id, i.type, i.identity, r.rolname, s.nspname, sr.rolname,
           coalesce(x.indrelid, con.conrelid, st.stxrelid, t.tgrelid, w.ev_class, p.polrelid, d.adrelid)::bigint,
           coalesce(x.indisunique and xc.relkind in ('r', 'p'), false),
           coalesce(w.rulename = '_RETURN', false),
           coalesce(f.prokind <> 'a' and (not l.lanpltrusted or f.proleakproof or f.prosupport <> 0),
                    ty.typtype = 'b', ca.castmethod = 'b', false),
           (select inhparent from pg_inherits h where h.inhrelid = c.oid and c.relispartition
               and not h.inhdetachpending)::bigint
      from unnest(%s::int[], %s::oid[], %s::oid[]) e(dump_id, classid, oid)
           cross join lateral pg_identify_object(e.classid, e.oid, 0) i
           left join ({_OWNED}) o on (o.classid, o.oid) = (e.classid, e.oid)
           left join pg_roles r on r.oid = o.owner
           left join pg_namespace s on s.oid = o.schema
           left join pg_roles sr on sr.oid = s.nspowner
           left join pg_class c on e.classid = 'pg_catalog.pg_class'::regclass and c.oid = e.oid
           left join pg_index x on x.indexrelid = c.oid
           left join pg_class xc on xc.oid = x.indrelid
           left join pg_constraint con on e.classid = 'pg_catalog.pg_constraint'::regclass and con.oid = e.oid
           left join pg_statistic_ext st on e.classid = 'pg_catalog.pg_statistic_ext'::regclass and st.oid = e.oid
           left join pg_trigger t on e.classid = 'pg_catalog.pg_trigger'::regclass and t.oid = e.oid
           left join pg_rewrite w on e.classid = 'pg_catalog.pg_rewrite'::regclass and w.oid = e.oid
           left join pg_policy p on e.classid = 'pg_catalog.pg_policy'::regclass and p.oid = e.oid
           left join pg_attrdef d on e.classid = 'pg_catalog.pg_attrdef'::regclass and d.oid = e.oid
           left join pg_proc f on e.classid = 'pg_catalog.pg_proc'::regclass and f.oid = e.oid
           left join pg_language l on l.oid = f.prolang
           left join pg_type ty on e.classid = 'pg_catalog.pg_type'::regclass and ty.oid = e.oid
           left join pg_cast ca on e.classid = 'pg_catalog.pg_cast'::regclass and ca.oid = e.oid
"""  # noqa: S608

_EXISTING = f"""
    select i.type, i.identity, r.rolname
      from ({_OWNED} {_UNOWNED}) o cross join lateral pg_identify_object(o.classid, o.oid, 0) i
           left join pg_roles r on r.oid = o.owner
     where i.identity is not null
       and (o.oid >= 16384 or o.classid = 'pg_catalog.pg_namespace'::regclass)
"""  # noqa: S608

# The parts of some tables that the stages after the copy create.
_PARTS = """
    with tables as (select to_regclass(name)::oid as oid from unnest(%s::text[]) name)
    select i.type, i.identity, r.rolname
      from (select 'pg_catalog.pg_class'::regclass::oid as classid, indexrelid as oid, 0::oid as owner from pg_index
             where indrelid in (select oid from tables)
            union all select 'pg_catalog.pg_constraint'::regclass, oid, 0 from pg_constraint
             where conrelid in (select oid from tables)
            union all select 'pg_catalog.pg_statistic_ext'::regclass, oid, stxowner from pg_statistic_ext
             where stxrelid in (select oid from tables)
           ) o cross join lateral pg_identify_object(o.classid, o.oid, 0) i left join pg_roles r on r.oid = o.owner
     where i.identity is not null
"""

_PARTITIONS = """
    select (pg_identify_object('pg_catalog.pg_class'::regclass, inhrelid, 0)).identity,
           (pg_identify_object('pg_catalog.pg_class'::regclass, inhparent, 0)).identity
      from pg_inherits join pg_class c on c.oid = inhrelid
     where c.relispartition and c.relkind <> 'i' and c.relkind <> 'I' and not inhdetachpending
"""

# Privileges that differ from those that a new object has, or that an extension or initdb gave it; pg_dump prints these.
_GRANTS = """
    with acls(classid, oid, owner, acl, kind, sub) as (
        select 'pg_catalog.pg_class'::regclass::oid, oid, relowner, relacl,
               (case relkind when 'S' then 's' else 'r' end)::"char", 0 from pg_class
        union all select 'pg_catalog.pg_class'::regclass, a.attrelid, c.relowner, a.attacl, 'c', a.attnum
                    from pg_attribute a join pg_class c on c.oid = a.attrelid where not a.attisdropped
        union all select 'pg_catalog.pg_proc'::regclass, oid, proowner, proacl, 'f', 0 from pg_proc
        union all select 'pg_catalog.pg_type'::regclass, oid, typowner, typacl, 'T', 0 from pg_type
        union all select 'pg_catalog.pg_namespace'::regclass, oid, nspowner, nspacl, 'n', 0 from pg_namespace
        union all select 'pg_catalog.pg_language'::regclass, oid, lanowner, lanacl, 'l', 0 from pg_language
        union all select 'pg_catalog.pg_foreign_data_wrapper'::regclass, oid, fdwowner, fdwacl, 'F', 0
                    from pg_foreign_data_wrapper
        union all select 'pg_catalog.pg_foreign_server'::regclass, oid, srvowner, srvacl, 'S', 0 from pg_foreign_server
    ), differing as (
        select a.*, coalesce(i.initprivs, acldefault(a.kind, a.owner)) as base
          from acls a left join pg_init_privs i on (i.classoid, i.objoid, i.objsubid) = (a.classid, a.oid, a.sub)
         where a.acl is not null and a.acl is distinct from coalesce(i.initprivs, acldefault(a.kind, a.owner))
           and (a.oid < 16384 or i.objoid is not null
                or (a.classid, a.oid) in (select * from unnest(%s::oid[], %s::oid[])))
    )
    select g.grantee::bigint, coalesce(r.rolname, ''), g.grantor <> d.owner,
           (pg_identify_object(d.classid, d.oid, 0)).identity
      from differing d cross join lateral (
               (select * from aclexplode(d.acl) except select * from aclexplode(d.base))
               union (select * from aclexplode(d.base) except select * from aclexplode(d.acl))
           ) g left join pg_roles r on r.oid = g.grantee
"""

_ROLES = """
    select r.rolname from pg_policy p cross join lateral unnest(p.polroles) u(oid) join pg_roles r on r.oid = u.oid
     where p.oid = any(%s)
    union select r.rolname from pg_default_acl d cross join lateral aclexplode(d.defaclacl) a
                 join pg_roles r on r.oid in (a.grantee, d.defaclrole) where d.oid = any(%s)
    union select m.usename from pg_user_mappings m where m.umuser <> 0 and m.srvid = any(%s)
"""

_OF_LARGE_OBJECTS = """
    select distinct r.rolname from pg_largeobject_metadata m cross join lateral aclexplode(m.lomacl) a
           join pg_roles r on r.oid = a.grantee where a.grantee <> m.lomowner
"""
_FOR_ROLES = """
    select distinct r.rolname from pg_default_acl d join pg_roles r on r.oid = d.defaclrole where d.oid = any(%s)
"""
_SUPERUSER_KINDS = frozenset(
    {
        *("ACCESS METHOD", "EVENT TRIGGER", "FOREIGN DATA WRAPPER", "OPERATOR CLASS", "OPERATOR FAMILY"),
        *("PROCEDURAL LANGUAGE", "SHELL TYPE", "TEXT SEARCH PARSER", "TEXT SEARCH TEMPLATE"),
    }
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the source's catalog has about an entry. `table` and `parent` are OIDs of the source.

    `type` and `identity` are those of `pg_identify_object`; `schema_owner` is empty for an object without a schema.
    """

    type: str
    identity: str
    owner: str | None = None
    schema: str | None = None
    schema_owner: str | None = None
    table: int | None = None
    unique: bool = False
    view_rule: bool = False
    superuser: bool = False
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles that the entries of an archive name, apart from owners.

    `members` are those whose default privileges are set, which requires membership. `granted` are objects with a
    privilege that another role than the owner granted, which requires a superuser.
    """

    named: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    granted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Existing:
    """The objects of a database: the owner by type and identity, and the parents of partitions by identity."""

    owners: dict[tuple[str, str], str | None]
    partitions: frozenset[tuple[str, str]]

    def __contains__(self, facts: Facts) -> bool:
        return (facts.type, facts.identity) in self.owners


def read_facts(session: Session, entries: Iterable[Entry]) -> dict[int, Facts]:
    """Read the facts of all entries that are objects, by identifier. Must run in the snapshot of the archive."""
    objects = [entry for entry in entries if entry.catalog]
    rows = session.rows(_IN_ARCHIVE, _columns(objects))
    by_id = {entry.dump_id: entry for entry in objects}
    found = {dump_id: Facts(*row) for dump_id, *row in rows if row[1] is not None}
    for dump_id, entry in by_id.items():
        if dump_id not in found:
            raise TableChanged(f"{entry} was dropped while the schema was dumped", "Retry the command.")
    return found


def _columns(objects: Collection[Entry]) -> list[list[int]]:
    return [[e.dump_id for e in objects], [e.catalog for e in objects], [e.oid for e in objects]]


def needs_superuser(entry: Entry, facts: Facts | None) -> bool:
    """Whether PostgreSQL lets only a superuser create this; a managed service may let others."""
    in_catalog = entry.kind == "ACL" and entry.rest.startswith("pg_catalog ")
    return entry.kind in _SUPERUSER_KINDS or in_catalog or (facts is not None and facts.superuser)


def read_roles(session: Session, entries: Collection[Entry]) -> Roles:
    """Read the roles that grants, policies, default privileges and user mappings name, and those of large objects."""
    objects = [entry for entry in entries if entry.catalog]
    grants = session.rows(_GRANTS, _columns(objects)[1:])
    acls, policies, servers = (
        [entry.oid for entry in objects if entry.catalog == CATALOGS[kind]]
        for kind in ("DEFAULT ACL", "POLICY", "SERVER")
    )
    named = {name for (name,) in session.rows(_ROLES, [policies, acls, servers])}
    named |= {name for grantee, name, *_ in grants if grantee}
    named |= {name for (name,) in session.rows(_OF_LARGE_OBJECTS)}
    granted = {identity for *_, by_another, identity in grants if by_another}
    members = {name for (name,) in session.rows(_FOR_ROLES, [acls])}
    return Roles(tuple(sorted(named - {""})), tuple(sorted(members)), tuple(sorted(granted)))


def read_existing(session: Session, tables: Collection[str] | None = None) -> Existing:
    """Read the objects of the database, or the indexes, constraints and statistics of tables with these identities.

    All objects of a large database are hundreds of thousands: too many to read for each of its tables.
    """
    if tables is not None:
        parts = session.rows(_PARTS, [list(tables)])
        return Existing({(kind, identity): owner for kind, identity, owner in parts}, frozenset())
    owners = {(kind, identity): owner for kind, identity, owner in session.rows(_EXISTING)}
    return Existing(owners, frozenset(session.rows(_PARTITIONS)))
