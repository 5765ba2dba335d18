"""Conversion of fingerprints to plain values and back, for JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from enum import Enum
from typing import Any

from tidemark.schema.fingerprint import Fingerprint
from tidemark.schema.table import Child, Column, Generated, Membership, Persistence, PgType, TypePart


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
