"""The fingerprint of a table, and the effect of a changed fingerprint on the mirror; without I/O.

Relation messages do not contain enough: nothing is sent for a default that changes every row, a `USING` clause that
rewrites values or a renamed enum label, nor for any change to a table that is not in its publication at the time. So
the fingerprint is read in the boundary's own snapshot and compared with the previous one:

    SAME       no difference for a reader; TRUNCATE, VACUUM FULL and CLUSTER have this effect
    METADATA   columns were added, dropped, renamed or widened, and the rows were not changed: mapped by attnum
    RESYNC     stored values may have changed without a message in the stream
    NEW        a different table has this name, or there was none before
    DROPPED    the table does not exist

A new filenode alone only means that the rows were rewritten. Together with a column whose catalog row was updated, it
may mean an `ALTER … TYPE … USING` to the same type, which leaves no other trace. That is a RESYNC, even if it was in
fact a harmless ALTER and a VACUUM FULL: an unnecessary copy is preferred to wrong values.

`to_plain` and `from_plain` convert fingerprints to plain values and back, for JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from tidemark.schema.table import Child, Column, Generated, Membership, Persistence, PgType, Table, TypePart

# Types with the same stored bytes and text, so that PostgreSQL changes one to the other without a rewrite.
_TEXTS = frozenset({25, 1043})  # text, varchar
_NUMERICS = 1231  # numeric[]: an array with a NaN uses the text fallback if, and only if, its elements are DECIMAL


class Effect(Enum):
    """What the mirror has to do; of several differences, the one with the highest value decides."""

    SAME = 0
    METADATA = 1
    RESYNC = 2
    NEW = 3
    DROPPED = 4


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The parts of a table's definition that its stored values depend on.

    `marked` are the columns that the stream flags as replica identity, None for all columns: a change with other flags
    identifies its row by something else than this key. `constraint` is the OID of the primary key constraint that
    provides the key, or 0. `children` are the tables one level below, whose rows a query of this table returns as well.
    """

    oid: int
    schema: str
    name: str
    filenode: int
    persistence: Persistence
    key: tuple[int, ...]
    columns: tuple[Column, ...]
    parent: int | None
    bound: str | None
    inherits: tuple[int, ...]
    memberships: tuple[Membership, ...]
    children: tuple[Child, ...] = ()
    marked: tuple[int, ...] | None = ()
    constraint: int = 0

    @classmethod
    def of(cls, table: Table, publications: Collection[str]) -> Fingerprint:
        """The fingerprint of a table of a catalog snapshot, with its membership in these publications of a mirror."""
        key = table.identity_key or table.primary_key
        return cls(
            oid=table.oid,
            schema=table.schema,
            name=table.name,
            filenode=table.filenode,
            persistence=table.persistence,
            key=key.attnums if key else (),
            columns=table.columns,
            parent=table.parent,
            bound=table.bound,
            inherits=table.inherits,
            memberships=tuple(m for m in table.memberships if m.publication in publications),
            children=table.children,
            marked=table.marked,
            constraint=key.constraint if key else 0,
        )

    @property
    def qualified(self) -> str:
        """`schema.table`, for messages; it is not quoted, and SQL must be composed from the parts."""
        return f"{self.schema}.{self.name}"

    @property
    def publications(self) -> tuple[str, ...]:
        """The names of the publications that the table is in."""
        return tuple(each.publication for each in self.memberships)

    def is_in(self, publication: str) -> bool:
        """Whether the table is in this publication."""
        return any(each.publication == publication for each in self.memberships)


@dataclass(frozen=True, slots=True)
class FingerprintComparison:
    """The effect of a change, and one reason for each difference that has this effect."""

    effect: Effect
    reasons: tuple[str, ...] = ()


Finding = tuple[Effect, str]


def compare(old: Fingerprint | None, new: Fingerprint | None) -> FingerprintComparison:
    """The effect of the changes to a table between two catalog snapshots."""
    if new is None:
        return (
            FingerprintComparison(Effect.DROPPED, ("the table was dropped",))
            if old
            else FingerprintComparison(Effect.SAME)
        )
    if old is None or old.oid != new.oid:
        reason = "the table is new" if old is None else f"another table (oid {new.oid}) has its name"
        return FingerprintComparison(Effect.NEW, (reason,))
    findings = [*_table_findings(old, new), *_column_findings(old, new)]
    if old.filenode != new.filenode and (columns := _rewritten_columns(old, new)):
        findings.append((Effect.RESYNC, f"the table was rewritten and altered: {', '.join(columns)}"))
    if not findings:
        return FingerprintComparison(Effect.SAME)
    effect = max((effect for effect, _ in findings), key=lambda effect: effect.value)
    return FingerprintComparison(effect, tuple(reason for found, reason in findings if found is effect))


def _table_findings(old: Fingerprint, new: Fingerprint) -> Iterator[Finding]:
    if (old.schema, old.name) != (new.schema, new.name):
        yield Effect.METADATA, f"renamed from {old.qualified} to {new.qualified}"
    if (old.parent, old.bound) != (new.parent, new.bound):
        yield Effect.METADATA, "its partitioned table or partition bound changed"
    if old.inherits != new.inherits:
        yield Effect.METADATA, "its parent tables changed"
    if old.children != new.children:
        yield Effect.METADATA, "its child tables changed"
    if old.memberships != new.memberships:
        yield Effect.RESYNC, "it was not published for some time, or the publication was altered"
    if old.key != new.key:
        yield Effect.RESYNC, f"its key changed from columns {list(old.key)} to {list(new.key)}"
    elif None in (old.marked, new.marked) and old.constraint != new.constraint:
        yield Effect.RESYNC, "it had no key for some time, and its replica identity is not the key"
    elif old.marked != new.marked:
        yield Effect.METADATA, "its replica identity changed"
    if old.persistence != new.persistence:
        yield Effect.RESYNC, f"it changed from {old.persistence.name.lower()} to {new.persistence.name.lower()}"


def _column_findings(old: Fingerprint, new: Fingerprint) -> Iterator[Finding]:
    before = {column.attnum: column for column in old.columns}
    after = {column.attnum: column for column in new.columns}
    rewritten = old.filenode != new.filenode
    for attnum in sorted(before.keys() | after.keys()):
        was, now = before.get(attnum), after.get(attnum)
        if now is None and was is not None:
            yield Effect.METADATA, f"column {was.name!r} dropped"
        elif was is None and now is not None:
            yield Effect.METADATA, f"column {now.name!r} added"
        elif was is not None and now is not None:
            yield from _changed(was, now, rewritten)


def _changed(was: Column, now: Column, rewritten: bool) -> Iterator[Finding]:
    name = repr(now.name)
    if was.name != now.name:
        yield Effect.METADATA, f"column {was.name!r} renamed to {name}"
    if was.type != now.type:
        yield (
            _type_effect(was.type, now.type),
            f"column {name} changed its type from {was.type.name} to {now.type.name}",
        )
    elif was.typmod != now.typmod:
        effect = Effect.RESYNC if was.type.oid == _NUMERICS else Effect.METADATA
        yield effect, f"column {name} changed its type modifier"
    if (was.generated, was.expression) != (now.generated, now.expression):
        virtual = was.generated is now.generated is Generated.VIRTUAL
        yield Effect.METADATA if virtual else Effect.RESYNC, f"column {name} changed its generation expression"
    if was.missing != now.missing and not (rewritten and now.missing is None):
        yield Effect.RESYNC, f"column {name} changed its value in rows that are older than the column"


def _type_effect(was: PgType, now: PgType) -> Effect:
    """METADATA if the text of every stored value is unchanged, else RESYNC."""
    if {was.oid, now.oid} <= _TEXTS:
        return Effect.METADATA
    if was.oid != now.oid or [part.attnum for part in was.parts] != [part.attnum for part in now.parts]:
        return Effect.RESYNC
    if was.kind == "c" and was.touched != now.touched:
        return Effect.RESYNC
    if not set(was.labels) <= set(now.labels) or not set(was.touched) <= set(now.touched):
        return Effect.RESYNC
    effect = Effect.METADATA
    for a, b in zip(was.parts, now.parts, strict=True):
        if a.type != b.type and _type_effect(a.type, b.type) is Effect.RESYNC:
            effect = Effect.RESYNC
    return effect


def _rewritten_columns(old: Fingerprint, new: Fingerprint) -> list[str]:
    """The names of the columns, old or new, whose catalog rows have changed."""
    before = {column.attnum: column.touched for column in old.columns}
    after = {column.attnum: column.touched for column in new.columns}
    names = {column.attnum: column.name for column in (*old.columns, *new.columns)}
    return [names[n] for n in sorted(names) if before.get(n) != after.get(n)]


def to_plain(fingerprint: Fingerprint) -> dict[str, Any]:
    """Convert a fingerprint to dictionaries, sequences, numbers and strings."""
    plain = asdict(fingerprint, dict_factory=_plainly)
    return dict(plain)


def from_plain(plain: Mapping[str, Any]) -> Fingerprint:
    """Rebuild the fingerprint from the result of `to_plain`, also after a round trip through JSON."""
    return Fingerprint(
        oid=plain["oid"],
        schema=plain["schema"],
        name=plain["name"],
        filenode=plain["filenode"],
        persistence=Persistence(plain["persistence"]),
        key=tuple(plain["key"]),
        columns=tuple(_column(each) for each in plain["columns"]),
        parent=plain["parent"],
        bound=plain["bound"],
        inherits=tuple(plain["inherits"]),
        memberships=tuple(Membership(**each) for each in plain["memberships"]),
        children=tuple(Child(**each) for each in plain["children"]),
        marked=None if plain["marked"] is None else tuple(plain["marked"]),
        constraint=plain["constraint"],
    )


def _plainly(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value.value if isinstance(value, Enum) else value for name, value in pairs}


def _column(plain: Mapping[str, Any]) -> Column:
    return Column(**{**plain, "type": _type(plain["type"]), "generated": Generated(plain["generated"])})


def _type(plain: Mapping[str, Any]) -> PgType:
    parts = tuple(TypePart(**{**part, "type": _type(part["type"])}) for part in plain["parts"])
    labels = tuple((oid, label) for oid, label in plain["labels"])
    return PgType(plain["oid"], plain["name"], plain["kind"], parts, labels, tuple(map(tuple, plain["touched"])))
