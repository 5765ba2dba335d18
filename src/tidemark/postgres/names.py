"""The names of all we create at the source. They begin with one prefix, and nothing without it is ever touched."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidemark.errors import InvalidValue, NotOurs

PREFIX = "tidemark_"
_MIRROR = re.compile(r"[a-z0-9_]{1,40}", re.ASCII)
_TAKEN = re.compile(r"^snapshot_|_inserts$")  # what our own temporary slots and second publications are called


@dataclass(frozen=True, slots=True)
class MirrorNames:
    """The objects of one mirror. Several mirrors of a server live side by side under different names."""

    mirror: str

    def __post_init__(self) -> None:
        if _MIRROR.fullmatch(self.mirror) is None or _TAKEN.search(self.mirror):
            raise InvalidValue(
                f"invalid mirror name: {self.mirror!r}",
                "Use 1 to 40 lower-case letters, digits and underscores, but not snapshot_… or …_inserts.",
            )

    @classmethod
    def of_database(cls, database: str) -> MirrorNames:
        """The default: the database's name, with what a slot's name cannot hold replaced. Slots belong to a server."""
        plain = re.sub(r"[^a-z0-9_]", "_", database.lower())[:40]
        return cls(f"db_{plain[:36]}_" if _TAKEN.search(plain) else plain)

    @property
    def slot(self) -> str:
        """The permanent slot."""
        return f"{PREFIX}{self.mirror}"

    @property
    def publication(self) -> str:
        """The publication of tables whose rows have an identity."""
        return f"{PREFIX}{self.mirror}"

    @property
    def all_publications(self) -> tuple[str, str]:
        """Both."""
        return self.publication, self.inserts_publication

    @property
    def inserts_publication(self) -> str:
        """The publication of tables without one: inserts and truncates only."""
        return f"{PREFIX}{self.mirror}_inserts"


def require_ours(name: str) -> str:
    """`name`, if it carries our prefix."""
    if not name.startswith(PREFIX) or name == PREFIX:
        raise NotOurs(f"{name!r} was not created by Tidemark", f"Use a name that begins with {PREFIX}.")
    return name
