"""The names of all objects that Tidemark creates at the source. All have one prefix; no other object is modified."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidemark.errors import InvalidValue, NotOurs

PREFIX = "tidemark_"
_MIRROR = re.compile(r"[a-z0-9_]{1,40}", re.ASCII)
_TAKEN = re.compile(r"^snapshot_|_inserts$")  # reserved for temporary slots and insert-only publications


@dataclass(frozen=True, slots=True)
class MirrorNames:
    """The names of one mirror's objects. Several mirrors of one server have different names."""

    mirror: str

    def __post_init__(self) -> None:
        if _MIRROR.fullmatch(self.mirror) is None or _TAKEN.search(self.mirror):
            raise InvalidValue(
                f"invalid mirror name: {self.mirror!r}",
                "Use 1 to 40 lower-case letters, digits and underscores, but not snapshot_… or …_inserts.",
            )

    @classmethod
    def of_database(cls, database: str) -> MirrorNames:
        """Return the default name: that of the database, with characters that a slot name cannot contain replaced.

        Slots are shared by all databases of a server, so the name must distinguish them.
        """
        plain = re.sub(r"[^a-z0-9_]", "_", database.lower())[:40]
        return cls(f"db_{plain[:36]}_" if _TAKEN.search(plain) else plain)

    @property
    def slot(self) -> str:
        """The name of the permanent slot."""
        return f"{PREFIX}{self.mirror}"

    @property
    def publication(self) -> str:
        """The publication of tables with a replica identity."""
        return f"{PREFIX}{self.mirror}"

    @property
    def all_publications(self) -> tuple[str, str]:
        """The names of both publications."""
        return self.publication, self.inserts_publication

    @property
    def inserts_publication(self) -> str:
        """The publication of tables without a replica identity: inserts and truncates only."""
        return f"{PREFIX}{self.mirror}_inserts"


def require_ours(name: str) -> str:
    """Return `name` if it has Tidemark's prefix; otherwise raise NotOurs."""
    if not name.startswith(PREFIX) or name == PREFIX:
        raise NotOurs(f"{name!r} was not created by Tidemark", f"Use a name that begins with {PREFIX}.")
    return name
