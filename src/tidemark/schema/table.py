"""The catalog: every table of the database that is visible in one snapshot, as values.

Columns are identified by attnum, which is never reused, so a column that was dropped and added again with the same name
is a different column. `filenode` is `pg_class.relfilenode` as of the snapshot, not the current one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property


class RelationKind(Enum):
    """The values of `pg_class.relkind`."""

    TABLE = "r"
    PARTITIONED = "p"
    FOREIGN = "f"


class Persistence(Enum):
    """The values of `pg_class.relpersistence`; only changes to permanent tables are in the WAL."""

    PERMANENT = "p"
    UNLOGGED = "u"


class ReplicaIdentity(Enum):
    """The values of `pg_class.relreplident`."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


class Generated(Enum):
    """The values of `pg_attribute.attgenerated`."""

    NO = ""
    STORED = "s"
    VIRTUAL = "v"


FOLLOW_NAMES = frozenset(
    f"pg_catalog.{name}"
    for name in (
        *("regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator"),
        *("regproc", "regprocedure", "regrole", "regtype", "aclitem"),
    )
)


@dataclass(frozen=True, slots=True)
class TypePart:
    """A type inside a type: an array's element, a domain's base, a composite type's attribute, a range's bound."""

    attnum: int
    name: str
    type: PgType
    typmod: int


@dataclass(frozen=True, slots=True)
class PgType:
    """A type, with everything that the text of its values depends on.

    `labels` are the OIDs and labels of an enum, in sort order. `touched` are the xmins of the catalog rows of an enum's
    labels or a composite type's attributes, dropped ones included: only they reveal a change that was reverted.
    """

    oid: int
    name: str
    kind: str
    parts: tuple[TypePart, ...] = ()
    labels: tuple[tuple[int, str], ...] = ()
    touched: tuple[tuple[int, int], ...] = ()

    def whole(self) -> Iterator[PgType]:
        """The type and all types inside it, recursively."""
        yield self
        for part in self.parts:
            yield from part.type.whole()

    @property
    def follows_names(self) -> bool:
        """Whether the text of its values changes when another object is renamed."""
        return self.name in FOLLOW_NAMES or any(part.type.follows_names for part in self.parts)


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    `expression` is a digest of a generated column's expression; `missing` is the value in rows that are older than the
    column; `touched` is the xmin of the catalog row. `not_null` does not affect values and is not compared.
    """

    attnum: int
    name: str
    type: PgType
    typmod: int
    not_null: bool = field(compare=False)
    generated: Generated
    expression: str | None
    missing: str | None
    touched: int


@dataclass(frozen=True, slots=True)
class Key:
    """A unique index that identifies rows, with its columns in index order.

    `constraint` is the OID of the primary key constraint, which REINDEX CONCURRENTLY does not change; 0 for an index
    that is not a primary key.
    """

    index: str
    attnums: tuple[int, ...]
    constraint: int = 0


@dataclass(frozen=True, slots=True)
class Membership:
    """The membership of a table in one of Tidemark's publications.

    `token` changes when the table is removed and added again, and when the publication is altered.
    """

    publication: str
    token: str


@dataclass(frozen=True, slots=True)
class Child:
    """A table one level below another table: a partition of it, or a table that inherits from it.

    `name` is `schema.table` as of the catalog snapshot, for messages; it is not compared, so a renamed child is equal.
    """

    oid: int
    name: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Table:
    """One table, partitioned table, partition or foreign table.

    `marked` are the columns that the stream flags as replica identity; None means all columns. `children` are ordered
    by OID and exclude temporary tables, which are visible to one session only. A table with a `flaw` cannot be mirrored
    until it is changed; the text is the reason.
    """

    oid: int
    schema: str
    name: str
    kind: RelationKind
    persistence: Persistence
    filenode: int
    replica_identity: ReplicaIdentity
    marked: tuple[int, ...] | None
    identity_key: Key | None
    primary_key: Key | None
    columns: tuple[Column, ...]
    parent: int | None
    bound: str | None
    inherits: tuple[int, ...]
    children: tuple[Child, ...]
    memberships: tuple[Membership, ...]
    row_security: bool
    schema_usable: bool
    selectable: bool
    schema_owned: bool
    owned: bool
    flaw: str | None = None

    @property
    def qualified(self) -> str:
        """`schema.table`, for messages; it is not quoted, and SQL must be composed from the parts."""
        return f"{self.schema}.{self.name}"

    @property
    def readable(self) -> bool:
        """Whether the role may read and lock the table, for which privileges on columns are not sufficient."""
        return self.schema_usable and self.selectable

    @property
    def identifies_rows(self) -> bool:
        """Whether UPDATE and DELETE messages identify their row; only then may these operations be published."""
        return self.replica_identity is ReplicaIdentity.FULL or self.identity_key is not None

    @property
    def streams(self) -> bool:
        """Whether its changes are in the WAL, with this table as their relation."""
        return self.kind is RelationKind.TABLE and self.persistence is Persistence.PERMANENT


@dataclass(frozen=True)
class Catalog:
    """All tables that are visible in one snapshot."""

    tables: tuple[Table, ...]

    @cached_property
    def by_oid(self) -> Mapping[int, Table]:
        """Tables by OID."""
        return {table.oid: table for table in self.tables}

    def ancestors(self, leaf: Table) -> Iterator[Table]:
        """The partitioned tables above a partition, the nearest first."""
        parent = self.by_oid.get(leaf.parent) if leaf.parent is not None else None
        if parent is not None:
            yield parent
            yield from self.ancestors(parent)
