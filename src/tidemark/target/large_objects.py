"""Large objects: copied in a snapshot with their OIDs, comments and privileges, and compared by content.

A large object is written in one transaction of the target, in parts, so after a crash it is complete or absent. One
that the clone created earlier is compared by digests of its parts and rewritten if it differs. Large objects are not
in the replication stream: before a cutover they are copied once more.

The OIDs of those that the clone created are recorded in the transactions that create them. All others at the target are
those of other applications, which are neither rewritten nor removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from psycopg import sql

from tidemark.errors import NotPermitted, TargetNotReady
from tidemark.postgres.quoted import statement
from tidemark.postgres.session import Session
from tidemark.target.state import CloneRecord

PART_BYTES = 1 << 20
_FIRST_BYTES = 64 << 10  # most large objects are complete in their first part
_AT_ONCE = 64
_SHOWN = 10

# has_largeobject_privilege() exists since version 18.
_LISTED = """
    select m.oid::bigint, obj_description(m.oid, 'pg_largeobject'),
           current_setting('lo_compat_privileges')::bool or (select rolsuper from pg_roles where rolname = current_user)
           or exists (select from aclexplode(coalesce(m.lomacl, acldefault('L', m.lomowner))) a
                       where a.privilege_type = 'SELECT' and (a.grantee = 0 or pg_has_role(a.grantee, 'USAGE'))),
           coalesce((select jsonb_agg(jsonb_build_array(coalesce(r.rolname, ''), a.privilege_type, a.is_grantable)
                                      order by r.rolname, a.privilege_type)
                       from aclexplode(m.lomacl) a left join pg_roles r on r.oid = a.grantee
                      where a.grantee <> m.lomowner), '[]')
      from pg_largeobject_metadata m order by m.oid
"""
_FIRST = "select o::bigint, lo_get(o, 0, %s) from unnest(%s::oid[]) o"
_PART = "select lo_get(%s::oid, %s, %s)"
_DIGEST = "select md5(part), length(part) from lo_get(%s::oid, %s, %s) part"
_CREATE = "select lo_from_bytea(%s::oid, %s)"
_WRITE = "select lo_put(%s::oid, %s, %s)"
# lo_truncate64 needs a descriptor, which is valid in this transaction.
_TRUNCATE = "select lo_truncate64(lo_open(%s::oid, 131072), 0)"


@dataclass(frozen=True, slots=True)
class LargeObject:
    """A large object. `grants` are the privileges of other roles than its owner: role ('' is PUBLIC), which, option."""

    oid: int
    comment: str | None
    readable: bool
    grants: tuple[tuple[str, str, bool], ...]


@dataclass(frozen=True, slots=True)
class LargeObjectsCopied:
    """The result: how many were created, rewritten and found equal, and which of the clone the source no longer has."""

    created: int
    rewritten: int
    equal: int
    extra: tuple[int, ...]


def read_large_objects(session: Session) -> tuple[LargeObject, ...]:
    """Read which large objects exist. In a transaction, those of its snapshot."""
    return tuple(
        LargeObject(oid, comment, readable, tuple((role, privilege, option) for role, privilege, option in grants))
        for oid, comment, readable, grants in session.rows(_LISTED)
    )


def require_unused_oids(source: Session, target: Session, own: Collection[int] = ()) -> None:
    """Raise TargetNotReady if the target has large objects, other than its `own`, with OIDs that the source uses."""
    both = {each.oid for each in read_large_objects(source)} & {each.oid for each in read_large_objects(target)}
    if taken := sorted(both.difference(own)):
        unlink = statement("select lo_unlink(oid) from unnest({}::oid[]) oid;", sql.Literal(taken))
        raise TargetNotReady(
            f"the target has large objects that the clone did not create, with OIDs that the source uses: "
            f"{_shown(taken)}",
            f"Use another database as the target. If no application needs them, run there: {unlink}",
        )


def copy_large_objects(source: Session, target: Session, clone: str) -> LargeObjectsCopied:
    """Copy all large objects; `source` is in a transaction, whose snapshot is read, and `target` in none.

    Raise NotPermitted, before anything is written, if one cannot be read, and TargetNotReady if another application has
    one with its OID at the target. Those of the clone that the source no longer has are reported and not removed.
    """
    role, record = target.connection.info.user, CloneRecord(target, clone)
    wanted = [_without_grants_to(each, role) for each in read_large_objects(source)]
    _require_readable(source, wanted)
    own = record.large_objects()
    require_unused_oids(source, target, own)
    existing = {each.oid: each for each in read_large_objects(target) if each.oid in own}
    new = [each for each in wanted if each.oid not in existing]
    for start in range(0, len(new), _AT_ONCE):
        _create(source, target, record, new[start : start + _AT_ONCE])
    both = [each for each in wanted if each.oid in existing]
    rewritten = sum(_rewrite_if_different(source, target, each, existing[each.oid]) for each in both)
    extra = tuple(sorted(existing.keys() - {each.oid for each in wanted}))
    return LargeObjectsCopied(len(new), rewritten, len(both) - rewritten, extra)


def _without_grants_to(each: LargeObject, role: str) -> LargeObject:
    """Return a large object as it is when this role owns it: an owner needs no grants."""
    return replace(each, grants=tuple(grant for grant in each.grants if grant[0] != role))


def remove_large_objects(target: Session, clone: str, oids: Collection[int]) -> None:
    """Remove large objects that the clone created, such as those that no longer exist at the source."""
    with target.transaction(read_only=False):
        target.rows("select lo_unlink(oid) from unnest(%s::oid[]) oid", [list(oids)])
        CloneRecord(target, clone).remove_large_objects(oids)


def _require_readable(session: Session, wanted: Collection[LargeObject]) -> None:
    closed = [each.oid for each in wanted if not each.readable]
    if closed:
        role = sql.Identifier(session.connection.info.user).as_string(session.connection)
        raise NotPermitted(
            f"role {session.connection.info.user} may not read the large objects {_shown(closed)}",
            f"Have their owner run: grant select on large object {', '.join(map(str, closed))} to {role};",
            "42501",
        )


def _shown(oids: Sequence[int]) -> str:
    more = f" and {len(oids) - _SHOWN} more" if len(oids) > _SHOWN else ""
    return f"{', '.join(map(str, oids[:_SHOWN]))}{more}"


def _create(source: Session, target: Session, record: CloneRecord, objects: Collection[LargeObject]) -> None:
    first = {oid: bytes(data) for oid, data in source.rows(_FIRST, [_FIRST_BYTES, [each.oid for each in objects]])}
    with target.transaction(read_only=False):
        record.add_large_objects(first)
        for each in objects:
            target.rows(_CREATE, [each.oid, first[each.oid]])
            if len(first[each.oid]) == _FIRST_BYTES:
                _write(source, target, each.oid, _FIRST_BYTES)
            _describe(target, each, None)


def _write(source: Session, target: Session, oid: int, offset: int) -> None:
    """Copy the parts from an offset on."""
    for position, data in _parts(source, oid, offset):
        target.rows(_WRITE, [oid, position, data])


def _parts(source: Session, oid: int, offset: int) -> Iterator[tuple[int, bytes]]:
    while data := bytes(source.row(_PART, [oid, offset, PART_BYTES])[0]):
        yield offset, data
        offset += len(data)


def _rewrite_if_different(source: Session, target: Session, wanted: LargeObject, found: LargeObject) -> bool:
    same_content = _is_equal(source, target, wanted.oid)
    if same_content and (wanted.comment, wanted.grants) == (found.comment, found.grants):
        return False
    with target.transaction(read_only=False):
        if not same_content:
            target.rows(_TRUNCATE, [wanted.oid])
            _write(source, target, wanted.oid, 0)
        _describe(target, wanted, found)
    return True


def _is_equal(source: Session, target: Session, oid: int) -> bool:
    offset, length = 0, PART_BYTES
    while length == PART_BYTES:
        arguments = [oid, offset, PART_BYTES]
        (digest, length), there = source.row(_DIGEST, arguments), target.row(_DIGEST, arguments)
        if (digest, length) != tuple(there):
            return False
        offset += length
    return True


def _describe(target: Session, wanted: LargeObject, found: LargeObject | None) -> None:
    """Set the comment and the privileges, unless they are those of the large object that was found."""
    name = sql.SQL("large object {}").format(wanted.oid)
    statements: list[sql.Composed] = []
    if wanted.comment != (found.comment if found else None):
        statements.append(sql.SQL("comment on {} is {}").format(name, sql.Literal(wanted.comment)))
    granted = sorted({role for role, *_ in found.grants}) if found else []
    statements += [sql.SQL("revoke all on {} from {}").format(name, _role(role)) for role in granted]
    for role, privilege, option in wanted.grants:
        suffix = sql.SQL(" with grant option" if option else "")
        which = sql.SQL("select" if privilege == "SELECT" else "update")
        statements.append(sql.SQL("grant {} on {} to {}{}").format(which, name, _role(role), suffix))
    for each in statements:
        target.execute(each, f"describing large object {wanted.oid}")


def _role(name: str) -> Any:
    return sql.Identifier(name) if name else sql.SQL("public")
