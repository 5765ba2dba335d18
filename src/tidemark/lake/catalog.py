"""The catalog of a lake for readers other than Tidemark: `catalog.json` lists every table, its path and how to read it.

The catalog describes the lake at one LSN, at or below the schema LSN, and is replaced as a whole when names, columns,
readability or stored versions change. It is derived from the lake's registers and Delta tables alone. Every process
that writes, folds or expires the lake updates it afterwards, so that the next process completes an update that a crash
prevented. The Delta version that the catalog lists for a table exists before the catalog is written, and is removed
only after the catalog lists a later one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tidemark.clock import Lsn
from tidemark.errors import LakeDamaged, LakeInUse, LakeMissing, NotAnswerable
from tidemark.lake.commits import LOG, is_there
from tidemark.lake.lake import Lake
from tidemark.lake.paths import CHANGES, VERSIONS
from tidemark.lake.registers import Cycle, Tables, read_cycle, read_events, read_retained
from tidemark.lake.versions import BEGIN_LSN, END_LSN, StoredGeneration, end_versions, read_generation
from tidemark.schema.history import TableEventKind, TableHistory, of_events
from tidemark.schema.reasons import NO_REASON, Reason, being_altered
from tidemark.storage import open_storage
from tidemark.storage.fail_points import FailPoint, fail_point

NAME = "catalog.json"
FORMAT = 1
_LOCK = "_catalog.lock"
_PATIENCE = 20  # the pause between updates, as a multiple of the duration of an update
_READING = {
    "current": f"{END_LSN} is null",
    "as_of": f"{BEGIN_LSN} <= :lsn and ({END_LSN} is null or {END_LSN} > :lsn)",
}
_NOT_FOLDED = Reason("the table has not been folded yet", "Run `tidemark fold LAKE --all`.")
_WRITE_AGAIN = "Run `tidemark sync SOURCE LAKE`, which writes it again."

Plain = dict[str, Any]


def read_catalog(lake: Path) -> Plain:
    """Return the contents of `catalog.json`."""
    Lake.open(lake)
    data = open_storage(lake).read(NAME)
    if data is None:
        hint = "Run `tidemark sync SOURCE LAKE`, which writes it."
        raise LakeMissing(f"{lake / NAME} has not been written yet", hint)
    try:
        found = json.loads(data)
    except ValueError as error:
        raise LakeDamaged(f"{lake / NAME} is not valid JSON", _WRITE_AGAIN) from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        there = found.get("format") if isinstance(found, dict) else None
        raise LakeDamaged(
            f"{lake / NAME} has format {there or 'none'}, and this Tidemark supports format {FORMAT}", _WRITE_AGAIN
        )
    return found


def update_catalog(path: Path) -> bool:
    """Update the catalog; return whether it covers every table up to its LSN, and all recorded table events."""
    with _alone(path):
        cycle = read_cycle(path)
        position = cycle.readable
        known = of_events(read_events(path))
        certain = {oid: each.upto(min(position, cycle.schema_lsn_of(oid))) for oid, each in known.items()}
        histories = {oid: history for oid, history in certain.items() if history is not None}
        before = _last_catalog(path)
        tables = _Tables(path, position, histories, before, cycle.behind)
        found = tables.plain()
        if any(found[part] != before.get(part) for part in found):
            lake = Lake.open(path)
            head = {"format": FORMAT, "mirror": lake.mirror, "database": lake.database, "lsn": str(position)}
            written = {"written_at": datetime.now(UTC).isoformat(" ", "seconds"), "reading": _READING}
            storage = open_storage(path)
            storage.remove_unfinished(NAME)
            storage.write(NAME, json.dumps({**head, **written, **found}, indent=1).encode())
            fail_point(FailPoint.CATALOG_WRITTEN)
        return not tables.unfinished and not cycle.behind and histories == known


class PacedCatalog:
    """Updates the catalog; after each update it pauses for a multiple of the time that the update took."""

    def __init__(self, lake: Path) -> None:
        self._lake = lake
        self._next = 0.0

    @property
    def is_due(self) -> bool:
        """Whether the pause has ended."""
        return time.monotonic() >= self._next

    def update(self) -> bool:
        """Update the catalog, and return what `update_catalog` does."""
        begin = time.monotonic()
        covers_all = update_catalog(self._lake)
        self._next = time.monotonic() + _PATIENCE * (time.monotonic() - begin)
        return covers_all


class CatalogUpdates:
    """Updates the catalog when there are new table events, at a limited pace."""

    def __init__(self, lake: Path, register: Tables) -> None:
        self._catalog, self._register = PacedCatalog(lake), register
        self._done: tuple[int, tuple[Lsn, Mapping[int, Lsn]] | None] = (-1, None)

    def update_next(self) -> None:
        """Make the next `keep_up` compare the catalog, because events were deleted."""
        self._done = (-1, None)

    def keep_up(self, cycle: Cycle, *, at_once: bool = False) -> None:
        """Update the catalog if it is out of date at these watermarks; unless `at_once`, only after the pause."""
        position = cycle.readable, cycle.behind
        number, listed = self._done
        news = number != self._register.number or (listed is not None and listed != position)
        if news and (at_once or self._catalog.is_due):
            number = self._register.number
            self._done = number, None if self._catalog.update() else position


class _Tables:
    """The catalog's entries for tables; entries of the previous catalog are reused where they are still valid."""

    def __init__(
        self,
        lake: Path,
        position: Lsn,
        histories: Mapping[int, TableHistory],
        before: Plain,
        behind: Mapping[int, Lsn],
    ) -> None:
        self._lake, self._position, self._histories, self._behind = lake, position, histories, behind
        self._retained = read_retained(lake)
        self.unfinished = False
        entries = [*before.get("tables", ()), *before.get("dropped", ())]
        self._before: dict[int, Plain] = {entry["oid"]: entry for entry in entries}

    def plain(self) -> Plain:
        """Return an entry for every table that has a name, and for every dropped table."""
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
        if children and (why := self._uncertain(history)) is not None:
            generation, reason = None, why
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

    def _uncertain(self, history: TableHistory) -> Reason | None:
        """Return why the tables below one are not known: they may have been attached or detached meanwhile."""
        upto = self._behind.get(history.fingerprint.oid)
        return being_altered(history.fingerprint, upto) if upto is not None else None

    def _generation(self, history: TableHistory) -> tuple[Plain | None, Reason]:
        """Return the Delta version and stored columns of the generation to read, or the reason why there is none."""
        try:
            span = history.at(self._position)
        except NotAnswerable:
            return None, Reason(history.reason, history.fix)
        previous = self._previous(history, span.base.lsn)
        if previous is None:
            found = read_generation(self._lake, history.path, span.base.lsn)
            previous = _stored(found) if found is not None else None
        return previous, NO_REASON if previous is not None else _NOT_FOLDED

    def _previous(self, history: TableHistory, base: Lsn) -> Plain | None:
        """Return the previous catalog's entry if it is still valid, because opening many Delta tables is slow.

        The next commit can be missing because the log was cleaned up, which deletes that of the version first.
        """
        entry = self._before.get(history.fingerprint.oid, {})
        versions, columns = entry.get("versions"), entry.get("columns", ())
        if not versions or versions.get("from_lsn") != str(base):  # that of a dropped table has none
            return None
        log, version = self._lake / history.path / VERSIONS / LOG, versions["delta_version"]
        same = {column["attnum"] for column in columns} == {each.attnum for each in history.fingerprint.columns}
        is_last = not (log / f"{version + 1:020}.json").exists() and (log / f"{version:020}.json").exists()
        if not same or not is_last:
            return None
        stored = {column["attnum"]: (column["stored"], column["text"]) for column in columns}
        return {"versions": {key: versions[key] for key in ("delta_version", "from_lsn", "lsn")}, "stored": stored}

    def _changes(self, history: TableHistory) -> Plain | None:
        """Return the path of the table's changes, or None if it has never had any."""
        previous = self._before.get(history.fingerprint.oid, {}).get("changes")
        folder = f"{history.path}/{CHANGES}"
        return {"path": folder} if previous or is_there(self._lake / folder) else None

    def _root(self, history: TableHistory, rows: Mapping[int, Plain]) -> Plain:
        """Return the entry of a partitioned table: the union of its partitions, whose columns are matched by name."""
        leaves = sorted(self._leaves(history))
        lacking = [oid for oid in leaves if rows.get(oid, {}).get("state") != "readable"]
        names = [self._histories[oid].name if oid in self._histories else f"oid {oid}" for oid in lacking]
        reason = Reason(f"partitions that cannot be read: {', '.join(names)}") if lacking else NO_REASON
        reason = self._uncertain(history) or reason
        return {
            **_name(history),
            "kind": "partitioned table",
            "state": "waiting" if reason.text else "readable",
            "reason": reason.text or None,
            "fix": reason.fix or None,
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
        """Return the entry of a dropped table, whose last rows are in an earlier Delta version until they expire."""
        lsn = str(history.last.lsn)
        entry = self._before.get(history.fingerprint.oid, {})
        previous = entry if entry.get("dropped_lsn") == lsn else {}
        return {
            **_name(history),
            "kind": "partitioned table" if history.is_union else "table",
            "state": "dropped",
            "dropped_lsn": lsn,
            "reason": history.reason,
            "path": None if history.is_union else history.path,
            "versions": previous.get("versions") or self._end(history),
            "last": self._last(history, previous.get("last")),
        }

    def _end(self, history: TableHistory) -> Plain | None:
        """Make the versions of a dropped table empty; return the Delta version of that, if there is one yet."""
        try:
            ended = None if history.is_union else end_versions(self._lake, history.path, history.last.lsn)
        except LakeInUse:  # a fold of the table is running
            self.unfinished, ended = True, None
        return None if ended is None else {"path": f"{history.path}/{VERSIONS}", "delta_version": ended}

    def _last(self, history: TableHistory, previous: Plain | None) -> Plain | None:
        """Return the last generation of a dropped table, or None once the retention period has passed it."""
        spans = history.spans()
        if history.is_union or not spans or (spans[-1].end is not None and spans[-1].end < self._retained):
            return None
        found = None if previous else read_generation(self._lake, history.path, spans[-1].base.lsn)
        return _stored(found)["versions"] if found is not None else previous


def is_dropped(history: TableHistory) -> bool:
    """Return whether a table was dropped at the source or is no longer mirrored."""
    return history.last.kind is TableEventKind.DROPPED


def _name(history: TableHistory) -> Plain:
    table = history.fingerprint
    return {"schema": table.schema, "name": table.name, "oid": table.oid}


def _stored(found: StoredGeneration) -> Plain:
    """Return the entry of a generation: its Delta version, and per attnum the stored column and text fallback."""
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
    """Serialize catalog updates between processes and threads, so that a later update describes a later state."""
    with closing(open_storage(lake).wait_for_lock(_LOCK)):
        yield
