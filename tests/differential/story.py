"""The phases of one lake: a world of invented tables, copied, changed, folded and altered, and read in each phase.

`changed` is read at now, from the log's tail; `changes applied` from change files; `folded` from versions. Then tables
are altered: what PostgreSQL does not rewrite is read from the files that are there, the others from a new copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import tidemark
from harness.database import MIRROR, Database
from harness.syncing import Synced, syncing
from tests.differential.statements import Relation
from tests.differential.tables import (
    ALTERED,
    ALTERED_CHANGED,
    ALTERED_FOLDED,
    CHANGED,
    COPIED,
    FOLDED,
    PHASES,
    Table,
    setup,
)
from tidemark.mirror.moment import Moment

Ids = Mapping[str, frozenset[int]]
AT_NOW = (CHANGED, ALTERED_CHANGED)


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase that has been reached: the handle to read by, and the tables as they are."""

    name: str
    moment: Moment
    relations: tuple[Relation, ...]


def told(
    database: Database,
    folder: Path,
    spark: SparkSession,
    tables: Sequence[Table],
    phases: Sequence[str] = PHASES,
    ids: Ids | None = None,
) -> Iterator[Phase]:
    """Tell the story of some tables, with the rows that have these ids; stop at each phase until the next is wanted."""
    wanted = ids or {}
    database.run(*setup(), *(table.definition for table in tables))
    _run(database, tables, COPIED, wanted)
    with (
        syncing(database, folder, spark, *(table.name for table in tables), folds=False) as synced,
        tidemark.open(synced.options.lake, spark, source=database.dsn(MIRROR)) as mirror,
    ):
        for name in PHASES[: PHASES.index(phases[-1]) + 1]:
            if name != COPIED:
                _run(database, tables, name, wanted)
            _bring(synced, name)
            if name not in phases:
                continue
            relations = tuple(Relation(table.name, table.steps[name].columns) for table in tables)
            with mirror.at("now" if name in AT_NOW else "latest") as moment:
                yield Phase(name, moment, relations)


def _run(database: Database, tables: Sequence[Table], phase: str, ids: Ids) -> None:
    """The changes of every table in transactions of some size."""
    for table in tables:
        changes = list(table.changes(phase, ids.get(table.name)))
        size = max(1, len(changes) // 7)
        database.run(*("; ".join(changes[at : at + size]) for at in range(0, len(changes), size)))


def _bring(synced: Synced, phase: str) -> None:
    """Have the mirror as it is in a phase; what is read at now is received, and no more."""
    if phase in AT_NOW:
        return
    if phase in {COPIED, ALTERED}:
        synced.catch_up()
        synced.copy_all()
    synced.catch_up()
    if phase in {FOLDED, ALTERED_FOLDED}:
        synced.fold()
