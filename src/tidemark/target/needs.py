"""What an archive needs and the target lacks, found before anything is created, with the SQL that provides it.

Whether a role may create an extension is tried in a transaction that is rolled back: managed services let roles create
extensions that PostgreSQL reserves to superusers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import LiteralString

from psycopg import sql

from tidemark.errors import NotPermitted, SourceError, TargetNotReady
from tidemark.postgres.quoted import statement
from tidemark.postgres.session import Session
from tidemark.target.archive import DumpArchive
from tidemark.target.stages import Entry

_SHOWN = 10
_ABSENT_ROLES = (
    "select name from unnest(%s::text[]) name where name not in (select rolname from pg_roles) order by name"
)
_NO_MEMBER = """
    select r.rolname from pg_roles r where r.rolname = any(%s) and not pg_has_role(r.oid, 'USAGE') order by r.rolname
"""
_AVAILABLE = "select name from pg_available_extensions where name = any(%s)"
_INSTALLED = "select extname from pg_extension where extname = any(%s)"
_SUPERUSER = "select rolsuper from pg_roles where rolname = current_user"
_OBJECTS = """
    select i.type || ' ' || i.identity from (
        select 'pg_catalog.pg_class'::regclass::oid as classid, oid, relnamespace as schema from pg_class
         where relkind in ('r', 'p', 'f', 'v', 'm', 'S')
        union all select 'pg_catalog.pg_proc'::regclass, oid, pronamespace from pg_proc
        union all select 'pg_catalog.pg_type'::regclass, t.oid, t.typnamespace
                    from pg_type t left join pg_class c on c.oid = t.typrelid
                   where t.typtype in ('e', 'd', 'r') or c.relkind = 'c'
    ) o join pg_namespace n on n.oid = o.schema
        cross join lateral pg_identify_object(o.classid, o.oid, 0) i
     where n.nspname = any(%s) and i.identity is not null
       and not exists (select from pg_depend d
                        where d.classid = o.classid and d.objid = o.oid and d.deptype in ('e', 'i'))
    union all select 'large object ' || oid from pg_largeobject_metadata
     order by 1
"""
# What a role that is no superuser may set as owner: it has the owner's rights, and the owner may create in the schema.
_OWNERS = """
    select coalesce(bool_and(
        r.oid is not null and ((select rolsuper from pg_roles where rolname = current_user)
            or coalesce(pg_has_role(r.oid, 'USAGE') and pg_has_role(r.oid, %s)
                and case when o.schema is null then has_database_privilege(r.oid, current_database(), 'CREATE')
                         when o.schema = 'public' then has_schema_privilege(r.oid, 'public', 'CREATE')
                         else pg_has_role(r.oid, s.oid, 'USAGE') end, false))), true)
      from unnest(%s::text[], %s::text[], %s::text[]) o(owner, schema, schema_owner)
           left join pg_roles r on r.rolname = o.owner left join pg_roles s on s.rolname = o.schema_owner
"""


@dataclass(frozen=True, slots=True)
class Needs:
    """What the target lacks.

    `roles` do not exist; `members` are roles that the connected role must be a member of; `unavailable` extensions are
    not installed on the server, and `extensions` can only be created by a superuser. `superuser` are entries that
    PostgreSQL lets only a superuser create, and `granted` objects with privileges that only a superuser can restore;
    both are empty if the role is a superuser. `existing` are objects in the schemas of the archive.
    """

    role: str
    roles: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    unavailable: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    superuser: tuple[Entry, ...] = ()
    granted: tuple[str, ...] = ()
    existing: tuple[str, ...] = ()

    def statements(self) -> tuple[str, ...]:
        """Return the SQL that an administrator of the target runs."""
        return tuple(self._statements())

    def _statements(self) -> Iterator[str]:
        role = sql.Identifier(self.role)
        yield from (statement("create role {};", sql.Identifier(name)) for name in self.roles)
        yield from (statement("grant {} to {};", sql.Identifier(name), role) for name in self.members)
        yield from (statement("create extension {};", sql.Identifier(name)) for name in self.extensions)

    def require(self) -> None:
        """Raise TargetNotReady if anything is lacking that a clone cannot do without, or the target is not empty.

        Entries for a superuser are not among these: whether a role may create them is known only when it does.
        """
        reasons = [f"{text} {_some(names)}" for text, names in self._reasons() if names]
        if reasons:
            raise TargetNotReady(f"the target is not ready: {'; '.join(reasons)}", self._hint())

    def _reasons(self) -> Iterator[tuple[str, Collection[str]]]:
        yield "it lacks the roles", self.roles
        yield f"role {self.role} is not a member of", self.members
        yield "its server does not provide the extensions", self.unavailable
        yield f"role {self.role} may not create the extensions", self.extensions
        yield "only a superuser can restore the privileges, granted by another role than the owner, on", self.granted
        yield "it is not empty:", self.existing

    def _hint(self) -> str:
        steps = []
        if statements := self.statements():
            steps.append(f"Have a superuser run in the target database: {' '.join(statements)}")
        if self.unavailable:
            steps.append(f"Install the packages of {', '.join(self.unavailable)} on the server of the target.")
        if self.granted:
            steps.append("Grant these privileges as the owner at the source, or connect to the target as a superuser.")
        if self.existing:
            steps.append("Use an empty database as the target, or drop these objects.")
        return " ".join(steps)


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def missing_at_target(session: Session, archive: DumpArchive) -> Needs:
    """Return what the target, which this session is connected to, lacks for an archive. Nothing is changed."""
    (superuser,) = session.row(_SUPERUSER)
    wanted = [archive.facts[entry.dump_id].identity for entry in archive.entries if entry.kind == "EXTENSION"]
    unavailable, refused = _extensions(session, wanted)
    members = archive.roles.members
    return Needs(
        role=session.connection.info.user,
        roles=_names(session, _ABSENT_ROLES, archive.roles.named),
        members=_names(session, _NO_MEMBER, members),
        unavailable=unavailable,
        extensions=refused,
        superuser=() if superuser else archive.superuser,
        granted=() if superuser else archive.roles.granted,
        existing=_names(session, _OBJECTS, _schemas(archive)),
    )


def _names(session: Session, query: LiteralString, names: Collection[str]) -> tuple[str, ...]:
    return tuple(name for (name,) in session.rows(query, [list(names)]))


def _schemas(archive: DumpArchive) -> list[str]:
    """Return the schemas that the archive creates objects in."""
    return sorted({facts.schema for facts in archive.facts.values() if facts.schema})


def _extensions(session: Session, identities: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the extensions that are not available, and those that the role may not create."""
    names = {_unquoted(identity) for identity in identities}
    names -= set(_names(session, _INSTALLED, names))
    available = set(_names(session, _AVAILABLE, names))
    refused = [name for name in sorted(available) if not _may_create(session, name)]
    return tuple(sorted(names - available)), tuple(refused)


def _unquoted(identity: str) -> str:
    return identity[1:-1].replace('""', '"') if identity.startswith('"') else identity


def _may_create(session: Session, extension: str) -> bool:
    probe = sql.SQL("create extension {} with schema tidemark_probe cascade").format(sql.Identifier(extension))
    session.begin(read_only=False)
    try:
        session.execute(sql.SQL("create schema {}").format(sql.Identifier("tidemark_probe")), "probing the target")
        session.execute(probe, f"probing extension {extension}")
    except NotPermitted:
        return False
    except SourceError:
        return True  # the attempt to create it for the archive reports the reason
    finally:
        session.end()
    return True


def may_set_owners(session: Session, archive: DumpArchive) -> bool:
    """Whether every object can have at the target the owner that it has at the source."""
    owned = {
        (facts.owner, facts.schema, facts.schema_owner) for facts in archive.facts.values() if facts.owner is not None
    }
    columns = [list(column) for column in zip(*sorted(owned, key=str), strict=True)] or [[], [], []]
    how = "SET" if session.version_num >= 160000 else "MEMBER"
    (may,) = session.row(_OWNERS, [how, *columns])
    return bool(may)


def replaced_owners(session: Session, archive: DumpArchive) -> str:
    """What becomes of the owners of the objects, if they cannot have them at the target; empty if they can."""
    role = session.connection.info.user
    counts = Counter(facts.owner for facts in archive.facts.values() if facts.owner not in (None, role))
    if not counts or may_set_owners(session, archive):
        return ""
    owners = _some([f"{owner} ({objects:,})" for owner, objects in sorted(counts.items(), key=str)])
    return f"all objects belong to {role}, which may not give them to their owners: {owners}"
