"""The entries of a schema archive, and the stage in which each is created at the target; without I/O.

    DEFINITIONS   before any row is copied: what pg_dump calls pre-data, without privileges on tables
    KEYS          after the rows of a table: primary keys, unique and exclusion constraints, unique indexes
    INDEXES       all other indexes, and definitions that depend on a key
    LAST          what would act on copied changes, or show rows too early: foreign keys, triggers, rules, row security,
                  privileges on tables, and the contents of materialized views

Privileges on tables wait for row security: otherwise a role could read, at the target, rows that a policy hides from
it at the source. Privileges on functions do not wait, because PostgreSQL lets every role execute a new function.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from tidemark.errors import UnsupportedArchive


class CloneStage(Enum):
    """When an entry is created."""

    DEFINITIONS = "definitions"
    KEYS = "keys"
    INDEXES = "indexes"
    LAST = "last"


class Section(Enum):
    """The section of pg_dump that an entry belongs to."""

    PRE_DATA = "pre-data"
    POST_DATA = "post-data"


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of an archive. `catalog` and `oid` are 0 if it is no object, such as a comment."""

    dump_id: int
    catalog: int
    oid: int
    kind: str
    rest: str
    depends: tuple[int, ...] = ()
    section: Section = Section.PRE_DATA

    def __str__(self) -> str:
        return f"{self.kind} {self.rest}"


# The catalog of each kind of object. The list of pg_restore does not separate a kind from the name of a schema, so
# that `TABLE ATTACH …` can be a table in schema ATTACH: the catalog decides.
_RELATION, _CONSTRAINT, _FUNCTION, _TYPE = 1259, 2606, 1255, 1247
CATALOGS: Mapping[str, int] = MappingProxyType(
    {
        "ACCESS METHOD": 2601,
        "AGGREGATE": _FUNCTION,
        "CAST": 2605,
        "CHECK CONSTRAINT": _CONSTRAINT,
        "COLLATION": 3456,
        "CONSTRAINT": _CONSTRAINT,
        "CONVERSION": 2607,
        "DEFAULT": 2604,
        "DEFAULT ACL": 826,
        "DOMAIN": _TYPE,
        "EVENT TRIGGER": 3466,
        "EXTENSION": 3079,
        "FK CONSTRAINT": _CONSTRAINT,
        "FOREIGN DATA WRAPPER": 2328,
        "FOREIGN TABLE": _RELATION,
        "FUNCTION": _FUNCTION,
        "INDEX": _RELATION,
        "MATERIALIZED VIEW": _RELATION,
        "OPERATOR": 2617,
        "OPERATOR CLASS": 2616,
        "OPERATOR FAMILY": 2753,
        "POLICY": 3256,
        "PROCEDURAL LANGUAGE": 2612,
        "PROCEDURE": _FUNCTION,
        "RULE": 2618,
        "SCHEMA": 2615,
        "SEQUENCE": _RELATION,
        "SERVER": 1417,
        "STATISTICS": 3381,
        "TABLE": _RELATION,
        "TEXT SEARCH CONFIGURATION": 3602,
        "TEXT SEARCH DICTIONARY": 3600,
        "TEXT SEARCH PARSER": 3601,
        "TEXT SEARCH TEMPLATE": 3764,
        "TRANSFORM": 3576,
        "TRIGGER": 2620,
        "TYPE": _TYPE,
        "VIEW": _RELATION,
        # Entries that are no object of a catalog.
        "ACL": 0,
        "COMMENT": 0,
        "INDEX ATTACH": 0,
        "MATERIALIZED VIEW DATA": 0,
        "ROW SECURITY": 0,
        "SECURITY LABEL": 0,
        "SEQUENCE OWNED BY": 0,
        "SHELL TYPE": 0,
        "TABLE ATTACH": 0,
        "USER MAPPING": 0,
    }
)
# Entries that concern the whole archive or the database; pg_restore does not create them in an existing database.
_GLOBAL = frozenset({"ENCODING", "STDSTRINGS", "SEARCHPATH", "DATABASE", "DATABASE PROPERTIES"})
_RELATIONS = frozenset({"TABLE", "VIEW", "MATERIALIZED VIEW", "FOREIGN TABLE", "SEQUENCE"})
_ATTACHED = frozenset({"ACL", "COMMENT", "SECURITY LABEL"})
_POST_DATA: Mapping[str, CloneStage] = MappingProxyType(
    {
        "CONSTRAINT": CloneStage.KEYS,
        "INDEX": CloneStage.INDEXES,
        "INDEX ATTACH": CloneStage.INDEXES,
        "STATISTICS": CloneStage.INDEXES,
        # pg_dump postpones definitions that depend on a primary key: `GROUP BY` the key, other columns selected.
        "FUNCTION": CloneStage.INDEXES,
        "PROCEDURE": CloneStage.INDEXES,
        "MATERIALIZED VIEW": CloneStage.INDEXES,
        "CHECK CONSTRAINT": CloneStage.LAST,  # not validated: rows that were there before need not satisfy it
        "DEFAULT ACL": CloneStage.LAST,
        "EVENT TRIGGER": CloneStage.LAST,
        "FK CONSTRAINT": CloneStage.LAST,
        "MATERIALIZED VIEW DATA": CloneStage.LAST,
        "POLICY": CloneStage.LAST,
        "ROW SECURITY": CloneStage.LAST,
        "RULE": CloneStage.LAST,
        "TRIGGER": CloneStage.LAST,
    }
)
_LINE = re.compile(r"(\d+); (\d+) (\d+) (.*)")
_DEPENDS = ";\tdepends on:"


def entries(text: str) -> tuple[Entry, ...]:
    """Parse the verbose list that pg_restore prints; raise UnsupportedArchive for a kind that is not known."""
    found: list[Entry] = []
    last: list[int] = []
    for line in text.split("\n"):
        if line.startswith(_DEPENDS):
            last.extend(map(int, line.removeprefix(_DEPENDS).split()))
        elif line and not line.startswith(";"):
            found = _with_depends(found, last)
            last = []
            found.append(_entry(line))
    return tuple(entry for entry in _with_depends(found, last) if entry.kind not in _GLOBAL)


def _with_depends(found: list[Entry], depends: Iterable[int]) -> list[Entry]:
    if found and (unique := tuple(dict.fromkeys(depends))):
        entry = found[-1]
        found[-1] = Entry(entry.dump_id, entry.catalog, entry.oid, entry.kind, entry.rest, unique)
    return found


def _entry(line: str) -> Entry:
    match = _LINE.fullmatch(line)
    if match is None:
        raise UnsupportedArchive(f"a line of the archive's list is not understood: {line!r}", _HINT)
    dump_id, catalog, oid, text = int(match[1]), int(match[2]), int(match[3]), match[4]
    fitting = [kind for kind, known in CATALOGS.items() if text.startswith(f"{kind} ") and known == catalog]
    fitting += [kind for kind in _GLOBAL if text.startswith(f"{kind} ")]
    if not fitting:
        raise UnsupportedArchive(f"the archive has an entry of an unknown kind: {text} (catalog {catalog})", _HINT)
    kind = max(fitting, key=len)
    return Entry(dump_id, catalog, oid, kind, text.removeprefix(kind).strip())


_HINT = "Drop the object at the source, or create the schema by other means and pass --schema existing."


def dump_ids(text: str) -> frozenset[int]:
    """Return the identifiers of the entries in a list that pg_restore prints."""
    return frozenset(int(match[1]) for line in text.split("\n") if (match := _LINE.fullmatch(line)))


def stage_of(entry: Entry, others: Mapping[int, Entry], unique: Collection[int] = ()) -> CloneStage:
    """Return the stage of an entry. `others` are all entries by identifier, `unique` the OIDs of unique indexes.

    A comment is created with its object. A unique index of a materialized view has to wait, as the view may.
    """
    if entry.kind in _ATTACHED:
        return _attached(entry, others, unique)
    if entry.section is Section.PRE_DATA:
        return CloneStage.DEFINITIONS
    if entry.kind not in _POST_DATA:
        raise UnsupportedArchive(f"the archive has an unexpected entry in its section post-data: {entry}", _HINT)
    if entry.kind == "INDEX" and entry.oid in unique:
        return CloneStage.KEYS
    return _POST_DATA[entry.kind]


def _attached(entry: Entry, others: Mapping[int, Entry], unique: Collection[int]) -> CloneStage:
    objects = [others[dump_id] for dump_id in entry.depends if dump_id in others]
    if entry.kind == "ACL" and (not objects or any(each.kind in _RELATIONS for each in objects)):
        return CloneStage.LAST
    stages = {stage_of(each, others, unique) for each in objects if each.kind not in _ATTACHED}
    return max(stages, key=list(CloneStage).index) if stages else CloneStage.DEFINITIONS


def closure(all_entries: Iterable[Entry], start: Collection[int]) -> frozenset[int]:
    """Return these entries and all that depend on one of them, by identifier. Entries are in the archive's order."""
    found = set(start)
    listed = tuple(all_entries)
    while more := {entry.dump_id for entry in listed if not found.isdisjoint(entry.depends)} - found:
        found |= more
    return frozenset(found)
