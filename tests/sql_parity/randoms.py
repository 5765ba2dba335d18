"""Random statements at the source and by the mirror, in the phases of lakes with invented tables."""

from __future__ import annotations

import tempfile
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

from harness.database import Database, create_database
from harness.postgres import Server
from tests.differential.kinds import Kind
from tests.differential.statements import Relation
from tests.differential.story import told
from tests.differential.tables import ALTERED_CHANGED, ALTERED_FOLDED, CHANGED, COPIED, FOLDED, PHASES, setup
from tests.sql_parity.comparison import Findings, Statement, compare
from tests.sql_parity.inside import Inside
from tests.sql_parity.lakes import Routes, has_icu, source_session
from tests.sql_parity.outside import NONDETERMINISTIC, OBJECTS, Outside
from tests.sql_parity.routes import Route
from tests.sql_parity.worlds import PROVEN, TAME, Inventory, world

READ = (COPIED, CHANGED, FOLDED, ALTERED_CHANGED, ALTERED_FOLDED)
SESSIONS = 3
ROWS = 120


@dataclass(frozen=True)
class Run:
    """Statements of one world: how many in each phase, inside of the grammar or outside of it; `only` one of them."""

    seed: int
    each: int
    outside: bool = False
    phases: Sequence[str] = READ
    kinds: Sequence[Kind] = PROVEN
    names: Sequence[str] = tuple(TAME)
    rows: int = ROWS
    only: int | None = None

    def again(self, phase: str, number: int) -> str:
        """How to repeat one statement."""
        where = "outside" if self.outside else "inside"
        return f"--seed {self.seed} --{where} {self.each} --phase '{phase}' --only {number}"

    def statements(self, phase: str, relations: Sequence[Relation], *, folds: bool) -> Iterator[Statement]:
        """The statements of a phase: the first ones are the same for every number of them."""
        chance = Random(f"{self.seed} {phase}")  # noqa: S311 - to be repeated
        author = Outside(chance, relations, folds=folds) if self.outside else Inside(chance, relations)
        while True:
            yield author.statement()


def compare_random(server: Server, spark: SparkSession | None, run: Run, routes: Routes) -> Findings:
    """The statements of one world in all its phases."""
    inventory, findings = world(run.seed, run.kinds, run.rows, run.names), Findings()
    database = create_database(server)
    folds = run.outside and has_icu(server)
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            closing(_story(database, Path(folder), spark, inventory, run.phases)) as phases,
        ):
            for at, (name, relations) in enumerate(phases):
                if at == 0 and run.outside:
                    _create_objects(database, folds=folds)
                statements = list(islice(run.statements(name, relations, folds=folds), run.each))
                with ExitStack() as sessions:
                    opened = sessions.enter_context(routes(database, Path(folder) / "lake"))
                    pairs = [(sessions.enter_context(source_session(database)), opened()) for _ in range(SESSIONS)]
                    findings.add(_compare_all(run, name, statements, pairs))
    finally:
        database.drop()
    return findings


def _story(
    database: Database, folder: Path, spark: SparkSession | None, inventory: Inventory, phases: Sequence[str]
) -> Generator[tuple[str, Sequence[Relation]], None, None]:
    """The phases with their tables: those of a lake, or without Spark those of the source alone."""
    if spark is not None:
        with closing(told(database, folder, spark, inventory.tables, phases)) as told_phases:  # type: ignore[type-var]
            for phase in told_phases:
                yield phase.name, phase.relations
        return
    database.run(*setup(), *(table.definition for table in inventory.tables))
    for name in PHASES[: PHASES.index(phases[-1]) + 1]:
        database.run(*("; ".join(table.changes(name)) for table in inventory.tables if table.steps[name].changes))
        if name in phases:
            yield name, inventory.relations(name)


def _create_objects(database: Database, *, folds: bool) -> None:
    database.run(*OBJECTS)
    if folds:
        database.admin(*NONDETERMINISTIC, "grant select on folds to app")


def _compare_all(
    run: Run, phase: str, statements: Sequence[Statement], pairs: Sequence[tuple[Route, Route]]
) -> Findings:
    """In several sessions at once, each with every n-th statement."""
    numbered = [(n, each) for n, each in enumerate(statements) if run.only is None or n == run.only]
    with ThreadPoolExecutor(len(pairs)) as pool:
        shares = [numbered[at :: len(pairs)] for at in range(len(pairs))]
        found = list(pool.map(partial(_compare_some, run, phase), pairs, shares))
    sum_of = Findings()
    for each in found:
        sum_of.add(each)
    return sum_of


def _compare_some(
    run: Run, phase: str, pair: tuple[Route, Route], numbered: Sequence[tuple[int, Statement]]
) -> Findings:
    findings = Findings()
    for number, statement in numbered:
        compare(statement, *pair, run.again(phase, number), findings)
    return findings
