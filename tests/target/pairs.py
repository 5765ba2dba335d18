"""Two databases to compare: on one server, or on two."""

from __future__ import annotations

from dataclasses import dataclass

from harness.database import MIRROR, Database
from tidemark.mirror.compare.narrowing import Difference
from tidemark.schema.selection import Pattern
from tidemark.target.compare.servers import ComparedObject, ServerCompareOptions, compare_servers, open_snapshots


@dataclass(frozen=True)
class Pair:
    """A source and a target."""

    source: Database
    target: Database

    def both(self, *statements: str) -> None:
        for database in (self.source, self.target):
            database.run(*statements)

    def compared(self, *patterns: str, user: str = MIRROR, **options: object) -> dict[str, ComparedObject]:
        wanted = ServerCompareOptions(**options)  # type: ignore[arg-type]
        taken = [Pattern(each) for each in patterns]
        with open_snapshots(self.source.dsn(user), self.target.dsn(user), 60) as snapshots:
            results = list(compare_servers(*snapshots, taken, wanted))
        assert [each.name for each in results] == sorted([each.name for each in results if each.kind == "table"]) + [
            each.name for each in results if each.kind != "table"
        ]
        return {each.name: each for each in results}


def differing(done: ComparedObject) -> list[tuple[Difference, str | None, tuple[str, ...]]]:
    assert done.found is not None
    return [(row.how, row.key, row.columns) for row in done.found.differing]
