"""The catalog of a lake, for readers other than Tidemark: `catalog.json` says which table is where and how to read it.

It describes the lake at one position, up to which all definitions are known, and is replaced as a whole when names,
columns, readability or stored versions have changed. It is made from the lake's own registers and Delta tables alone:
whoever writes, folds or vacuums the lake brings it up to date after that, so what a killed process left undone the next
one does. It names a version of each Delta table, which is there before the catalog names it, and is removed only after
the catalog names a later one.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidemark.clock import Lsn
from tidemark.errors import LakeDamaged, LakeInUse, LakeMissing, NotAnswerable
from tidemark.lake.commits import is_there
from tidemark.lake.files import write_whole
from tidemark.lake.history import Kind, TableHistory, of_events
from tidemark.lake.lake import Lake
from tidemark.lake.paths import CHANGES
from tidemark.lake.points import Point, reached
from tidemark.lake.reasons import NO_REASON, Reason
from tidemark.lake.registers import Tables, read_cycle, read_events, read_retained
from tidemark.lake.versions import BEGIN_LSN, END_LSN, VERSIONS, StoredGeneration, end_versions, read_generation

NAME = "catalog.json"
FORMAT = 1
_LOCK = "_catalog.lock"
_PATIENCE = 20  # times as long as an update takes
_READING = {
    "current": f"{END_LSN} is null",
    "as_of": f"{BEGIN_LSN} <= :lsn and ({END_LSN} is null or {END_LSN} > :lsn)",
}
_NOT_FOLDED = Reason("the table has not been folded yet", "Run `tidemark fold LAKE --all`.")
_WRITE_AGAIN = "Run `tidemark sync SOURCE LAKE`, which writes it again."

Plain = dict[str, Any]


def read_catalog(lake: Path) -> Plain:
    """The catalog as the lake has it."""
    Lake.open(lake)
    try:
        found = json.loads((lake / NAME).read_bytes())
    except FileNotFoundError as error:
        hint = "Run `tidemark sync SOURCE LAKE`, which writes it."
        raise LakeMissing(f"{lake / NAME} has not been written yet", hint) from error
    except ValueError as error:
        raise LakeDamaged(f"{lake / NAME} is not valid JSON", _WRITE_AGAIN) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        there = found.get("format") if isinstance(found, dict) else None
        raise LakeDamaged(
            f"{lake / NAME} has format {there or 'none'}, and this Tidemark supports format {FORMAT}", _WRITE_AGAIN
        )
    return found


def update_catalog(path: Path) -> bool:
    """Bring the catalog up to date; whether it has all that is known of tables, also above its position."""
    with _alone(path):
        cycle = read_cycle(path)
        position = min(cycle.safe, cycle.known)
        known = of_events(read_events(path))
        histories = {oid: there for oid, each in known.items() if (there := each.upto(position)) is not None}
        before = _last_catalog(path)
        tables = _Tables(path, position, histories, before)
        found = tables.plain()
        if any(found[part] != before.get(part) for part in found):
            lake = Lake.open(path)
            head = {"format": FORMAT, "mirror": lake.mirror, "database": lake.database, "lsn": str(position)}
            written = {"written_at": datetime.now(UTC).isoformat(" ", "seconds"), "reading": _READING}
            write_whole(path / NAME, json.dumps({**head, **written, **found}, indent=1))
            reached(Point.CATALOG_WRITTEN)
        return not tables.unfinished and histories == known


class CatalogUpdates:
    """Brings the catalog up to date whenever more is known of tables: from its making on, and not too often."""

    def __init__(self, lake: Path, register: Tables) -> None:
        self._lake, self._register = lake, register
        self._next = 0.0
        self._done: tuple[int, Lsn | None] = (-1, None)

    def keep_up(self, position: Lsn, *, at_once: bool = False) -> None:
        """See whether there is more to say at a position; if that takes long, not `at_once` but after a while."""
        number, listed = self._done
        news = number != self._register.number or (listed is not None and listed != position)
        begin = time.monotonic()
        if news and (at_once or begin >= self._next):
            number = self._register.number
            self._done = number, None if update_catalog(self._lake) else position
            self._next = time.monotonic() + _PATIENCE * (time.monotonic() - begin)


class _Tables:
    """What the catalog says of tables, given what it said before."""

    def __init__(self, lake: Path, position: Lsn, histories: Mapping[int, TableHistory], before: Plain) -> None:
        self._lake, self._position, self._histories = lake, position, histories
        self._retained = read_retained(lake)
        self.unfinished = False
        entries = [*before.get("tables", ()), *before.get("dropped", ())]
        self._before: dict[int, Plain] = {entry["oid"]: entry for entry in entries}

    def plain(self) -> Plain:
        """Every table that has a name, and every table that was dropped."""
        ordered = sorted(self._histories.values(), key=lambda each: (each.last.lsn, each.fingerprint.oid))
        dropped = [each for each in ordered if is_dropped(each)]
        named = {(each.fingerprint.schema, each.fingerprint.name): each for each in ordered if not is_dropped(each)}
        rows = {each.fingerprint.oid: self._table(each) for _, each in sorted(named.items()) if not each.is_union}
        roots = [self._root(each, rows) for _, each in sorted(named.items()) if each.is_union]
        tables = sorted([*rows.values(), *roots], key=lambda entry: (entry["schema"], entry["name"]))
        return {"tables": tables, "dropped": [self._dropped(each) for each in dropped]}

    def _table(self, history: TableHistory) -> Plain:
        generation, reason = self._generation(history)
        children = sorted(child.oid for child in history.fingerprint.children)
        return {
            **_name(history),
            "kind": "inheritance parent" if children else "table",
            "state": "waiting" if generation is None else "readable",
            "reason": reason.text or None,
            "fix": reason.fix or None,
            "path": history.path,
            "versions": generation and {"path": f"{history.path}/{VERSIONS}", **generation["versions"]},
            "changes": self._changes(history),
            "columns": _columns(history, generation["stored"] if generation is not None else {}),
            "children": children,
        }

    def _generation(self, history: TableHistory) -> tuple[Plain | None, Reason]:
        """Where the rows that are read are stored, and by which columns; or why there are none."""
        try:
            span = history.at(self._position)
        except NotAnswerable:
            return None, Reason(history.reason, history.fix)
        said = self._said_before(history, span.base.lsn)
        if said is None:
            found = read_generation(self._lake, history.path, span.base.lsn)
            said = _stored(found) if found is not None else None
        return said, NO_REASON if said is not None else _NOT_FOLDED

    def _said_before(self, history: TableHistory, base: Lsn) -> Plain | None:
        """What the last catalog said, if that is still so: opening many Delta tables takes long."""
        entry = self._before.get(history.fingerprint.oid, {})
        versions, columns = entry.get("versions"), entry.get("columns", ())
        if not versions or versions["from_lsn"] != str(base):
            return None
        log = self._lake / history.path / VERSIONS / "_delta_log"
        same = {column["attnum"] for column in columns} == {each.attnum for each in history.fingerprint.columns}
        if not same or (log / f"{versions['delta_version'] + 1:020}.json").exists():
            return None
        stored = {column["attnum"]: (column["stored"], column["text"]) for column in columns}
        return {"versions": {key: versions[key] for key in ("delta_version", "from_lsn", "lsn")}, "stored": stored}

    def _changes(self, history: TableHistory) -> Plain | None:
        """Where its changes are stored, if it ever had any."""
        said = self._before.get(history.fingerprint.oid, {}).get("changes")
        folder = f"{history.path}/{CHANGES}"
        return {"path": folder} if said or is_there(self._lake / folder) else None

    def _root(self, history: TableHistory, rows: Mapping[int, Plain]) -> Plain:
        """A partitioned table: it is what its partitions are together, each with the columns of the same names."""
        leaves = sorted(self._leaves(history))
        lacking = [oid for oid in leaves if rows.get(oid, {}).get("state") != "readable"]
        names = [self._histories[oid].name if oid in self._histories else f"oid {oid}" for oid in lacking]
        return {
            **_name(history),
            "kind": "partitioned table",
            "state": "waiting" if lacking else "readable",
            "reason": f"partitions that cannot be read: {', '.join(names)}" if lacking else None,
            "fix": None,
            "path": None,
            "versions": None,
            "changes": None,
            "columns": _columns(history, {}),
            "partitions": leaves,
        }

    def _leaves(self, root: TableHistory) -> Iterator[int]:
        for child in root.fingerprint.children:
            history = self._histories.get(child.oid)
            if history is not None and history.is_union:
                yield from self._leaves(history)
            else:
                yield child.oid

    def _dropped(self, history: TableHistory) -> Plain:
        """A table that is gone: what it held last is in an earlier version of its Delta table while that is kept."""
        lsn = str(history.last.lsn)
        entry = self._before.get(history.fingerprint.oid, {})
        said = entry if entry.get("dropped_lsn") == lsn else {}
        return {
            **_name(history),
            "kind": "partitioned table" if history.is_union else "table",
            "state": "dropped",
            "dropped_lsn": lsn,
            "reason": history.reason,
            "path": None if history.is_union else history.path,
            "versions": said.get("versions") or self._end(history),
            "last": self._last(history, said.get("last")),
        }

    def _end(self, history: TableHistory) -> Plain | None:
        """Have a dropped table's versions hold no rows; the Delta version at which they do, if there are any."""
        try:
            ended = None if history.is_union else end_versions(self._lake, history.path, history.last.lsn)
        except LakeInUse:  # it is folded at this moment
            self.unfinished, ended = True, None
        return None if ended is None else {"path": f"{history.path}/{VERSIONS}", "delta_version": ended}

    def _last(self, history: TableHistory, said: Plain | None) -> Plain | None:
        """The generation that a dropped table ended with, until that is out of the window."""
        spans = history.spans()
        if history.is_union or not spans or (spans[-1].end is not None and spans[-1].end < self._retained):
            return None
        found = None if said else read_generation(self._lake, history.path, spans[-1].base.lsn)
        return _stored(found)["versions"] if found is not None else said


def is_dropped(history: TableHistory) -> bool:
    """Whether a table is gone from its source, or from what is mirrored."""
    return history.last.kind is Kind.DROPPED


def _name(history: TableHistory) -> Plain:
    table = history.fingerprint
    return {"schema": table.schema, "name": table.name, "oid": table.oid}


def _stored(found: StoredGeneration) -> Plain:
    """A generation as the catalog says it: its Delta version, and for each attnum its column and the text beside."""
    texts = {column.attnum: column.name for column in found.stored if column.text}
    stored = {each.attnum: (each.name, texts.get(each.attnum)) for each in found.stored if not each.text}
    versions = {"delta_version": found.delta_version, "from_lsn": str(found.base), "lsn": str(found.folded)}
    return {"versions": versions, "stored": stored}


def _columns(history: TableHistory, stored: Mapping[int, tuple[str | None, str | None]]) -> list[Plain]:
    return [
        {
            "name": column.name,
            "attnum": column.attnum,
            "type": column.type.name.removeprefix("pg_catalog."),
            "typmod": column.typmod,
            "stored": stored.get(column.attnum, (None, None))[0],
            "text": stored.get(column.attnum, (None, None))[1],
        }
        for column in history.fingerprint.columns
    ]


def _last_catalog(lake: Path) -> Plain:
    try:
        return read_catalog(lake)
    except (LakeMissing, LakeDamaged):
        return {}


@contextmanager
def _alone(lake: Path) -> Iterator[None]:
    """One at a time, also among threads: who comes later describes a later state."""
    file = os.open(lake / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)
