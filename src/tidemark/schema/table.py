"""The catalogue: every table of the database as one snapshot shows it, as values.

Columns go by attnum, which is never reused, so a column that was dropped and added again under the same name is another
column. `filenode` is the snapshot's (`pg_class.relfilenode`), not the present one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property


class Kind(Enum):
    """What `pg_class.relkind` says."""

    TABLE = "r"
    PARTITIONED = "p"
    FOREIGN = "f"


class Persistence(Enum):
    """What `pg_class.relpersistence` says: only permanent tables are in the WAL."""

    PERMANENT = "p"
    UNLOGGED = "u"


class ReplicaIdentity(Enum):
    """What `pg_class.relreplident` says."""

    DEFAULT = "d"
    NOTHING = "n"
    FULL = "f"
    INDEX = "i"


class Generated(Enum):
    """What `pg_attribute.attgenerated` says."""

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
    """A type inside a type: an array's element, a domain's base, a composite's attribute, a range's bound."""

    attnum: int
    name: str
    type: PgType
    typmod: int


@dataclass(frozen=True, slots=True)
class PgType:
    """A type, down to everything its text depends on.

    `labels` are an enum's values by oid, in their order. `touched` are the xmins of the catalogue rows behind an enum's
    labels or a composite's attributes, dropped ones included: a change that was taken back shows there, and only there.
    """

    oid: int
    name: str
    kind: str
    parts: tuple[TypePart, ...] = ()
    labels: tuple[tuple[int, str], ...] = ()
    touched: tuple[tuple[int, int], ...] = ()

    def whole(self) -> Iterator[PgType]:
        """The type and every type inside it."""
        yield self
        for part in self.parts:
            yield from part.type.whole()

    @property
    def follows_names(self) -> bool:
        """Whether the text of its values changes when some other object is renamed."""
        return self.name in FOLLOW_NAMES or any(part.type.follows_names for part in self.parts)


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    `expression` stands for a generated column's expression, equal as long as that is; `missing` is what rows older than
    the column read as; `touched` is the xmin of its catalogue row. Whether it may be null does not change its values.
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
    """A unique index that can name a row: its columns in index order.

    `constraint` is the primary key's own oid, which REINDEX CONCURRENTLY leaves as it is; 0 where it is none.
    """

    index: str
    attnums: tuple[int, ...]
    constraint: int = 0


@dataclass(frozen=True, slots=True)
class Membership:
    """That a table is in a publication of ours; `token` changes when it was out of it or the publication changed."""

    publication: str
    token: str


@dataclass(frozen=True, slots=True)
class Child:
    """A table one level below another: a partition of it, or a table that inherits from it.

    `name` is `schema.table` when the catalogue was read, for messages: a child that was renamed is the same child.
    """

    oid: int
    name: str = field(compare=False)


@dataclass(frozen=True, slots=True)
class Table:
    """One table, partitioned table, partition or foreign table.

    `marked` are the columns that the stream marks as those that name a row; None says all. `children` are in the order
    of their oids, without temporary tables: those are part of what one session sees, and of no other. A table with a
    `flaw` cannot be mirrored as it is.
    """

    oid: int
    schema: str
    name: str
    kind: Kind
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
        """`schema.table`, for people; SQL is composed from the parts."""
        return f"{self.schema}.{self.name}"

    @property
    def readable(self) -> bool:
        """Whether our role may read and lock the table; rights on columns alone are not enough for that."""
        return self.schema_usable and self.selectable

    @property
    def identifies_rows(self) -> bool:
        """Whether an UPDATE or DELETE in the stream names its row, and so may be published at all."""
        return self.replica_identity is ReplicaIdentity.FULL or self.identity_key is not None

    @property
    def streams(self) -> bool:
        """Whether its changes are in the WAL under its own name."""
        return self.kind is Kind.TABLE and self.persistence is Persistence.PERMANENT


@dataclass(frozen=True)
class Catalog:
    """All tables that one snapshot shows."""

    tables: tuple[Table, ...]

    @cached_property
    def by_oid(self) -> Mapping[int, Table]:
        """Tables by oid."""
        return {table.oid: table for table in self.tables}

    @cached_property
    def by_name(self) -> Mapping[tuple[str, str], Table]:
        """Tables by schema and name."""
        return {(table.schema, table.name): table for table in self.tables}

    def ancestors(self, leaf: Table) -> Iterator[Table]:
        """The partitioned tables that a table is a partition of, from the nearest up."""
        parent = self.by_oid.get(leaf.parent) if leaf.parent is not None else None
        if parent is not None:
            yield parent
            yield from self.ancestors(parent)
