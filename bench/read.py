"""`make bench-read`: the mirror read with Spark against plain Parquet with the same rows in as many files.

Both run the same SQL in one warm session, alternately, until the rows are collected. The mirror is read with a handle
that is reused, against a view on the plain files; and, `_fresh`, with `mirror.at("latest")` each time, against
`spark.read.parquet` each time. A table is read folded, then with 1 % of its keys updated and not folded; so are
tables with a text and a composite key; then tables of 10, 100 and 1,000 files. ROWS= makes it smaller.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import tidemark
from bench.figures import report
from bench.wide import Wide, by_turns, size_bytes, wide
from tidemark.mirror.mirror import Mirror

ROWS = int(os.environ.get("ROWS", "5000000"))
FEWER = ROWS // 5
FILES = (10, 100, 1000)
TURNS, WARMING = 9, 3
SHARE = 0.01
AGGREGATION = """select status, count(*), sum(amount), avg(score), max(created), min(due)
    from {} group by status order by status"""
SUM = "select sum(quantity) from {}"


def main() -> None:
    """Fill, fold, measure; change, measure; then vary the number of files."""
    many = {f"files_{count}": "id bigint" for count in FILES}
    with wide({"wide": "id bigint", "named": "name text", "pair": "a int, b int", **many}) as bench:
        figures = _folded_and_changed(bench) | _named(bench) | _leading(bench)
        for count in FILES:
            figures |= _files(bench, count)
        report("read", {"rows": float(ROWS), **figures})


def _folded_and_changed(bench: Wide) -> dict[str, float]:
    bench.fill("wide", ROWS)
    bench.fold("wide")
    both = _Both(bench, "wide", bench.plain("wide"))
    both.require_equal(AGGREGATION)
    figures = both.sizes()
    figures |= both.measured("folded", AGGREGATION)
    figures |= both.measured("folded_sum", SUM)
    figures |= both.measured("point_folded", _looked_up([(turn + 5) * (ROWS // 30) for turn in range(TURNS + WARMING)]))
    figures |= _changed(bench, both, "unfolded_1pct")
    changed = bench.side.database.run(f"select id from wide where version > 0 limit {TURNS}")
    others = bench.side.database.run(f"select id from wide where version = 0 limit {TURNS}")
    return figures | both.measured(
        "point_unfolded", _looked_up([id_ for pair in zip(changed, others, strict=True) for (id_,) in pair])
    )


def _changed(bench: Wide, both: _Both, name: str) -> dict[str, float]:
    """Both queries with 1 % of the rows changed and not folded."""
    bench.change(both.table, SHARE)
    both.require_right(SUM)
    return both.measured(name, AGGREGATION) | both.measured(f"{name}_sum", SUM)


def _named(bench: Wide) -> dict[str, float]:
    """A text key."""
    bench.fill("named", ROWS, key="'name ' || i")
    bench.fold("named")
    return _changed(bench, _Both(bench, "named", bench.plain("named")), "unfolded_1pct_text")


def _leading(bench: Wide) -> dict[str, float]:
    """A composite key: lookups by all columns, and by its first column, which 10 rows share; then with changes."""
    bench.fill("pair", FEWER, key="i / 10, i % 10")
    bench.fold("pair")
    both = _Both(bench, "pair", bench.plain("pair"))
    step = FEWER // 10 // (TURNS + WARMING + 1)
    figures = both.measured("point_pair", lambda turn: f"select * from {{}} where a = {(turn + 5) * step} and b = 3")
    figures |= both.measured("point_leading", lambda turn: f"select * from {{}} where a = {(turn + 5) * step}")
    return figures | _changed(bench, both, "unfolded_1pct_pair")


def _files(bench: Wide, count: int) -> dict[str, float]:
    table = f"files_{count}"
    bench.fill(table, FEWER)
    bench.fold(table, buckets=count)
    both = _Both(bench, table, bench.plain(table))
    return {f"{table}_are": float(len(both.paths))} | both.measured(table, AGGREGATION)


def _looked_up(keys: Sequence[int]) -> Callable[[int], str]:
    return lambda turn: f"select * from {{}} where id = {keys[turn % len(keys)]}"


class _Both:
    """One table in both forms; statements have `{}` for the table."""

    def __init__(self, bench: Wide, table: str, paths: list[str]) -> None:
        self._bench, self.table, self.paths = bench, table, paths
        self._spark = bench.side.spark
        self._mirror: Mirror = tidemark.open(bench.side.options.lake, self._spark)
        self._spark.read.parquet(*paths).createOrReplaceTempView(f"plain_{table}")

    def measured(self, name: str, statement: str | Callable[[int], str]) -> dict[str, float]:
        """Run a statement on both forms; return the ratios and the times."""
        asked = statement if callable(statement) else lambda _: statement
        moment, view = self._mirror.at("latest"), f"plain_{self.table}"
        ours = f"public.{self.table}"

        def again(turn: int) -> None:
            files = self._spark.read.parquet(*self.paths)
            self._spark.sql(asked(turn).format("{files}"), files=files).collect()

        ways: dict[str, Callable[[int], object]] = {
            "ours": lambda turn: moment.sql(asked(turn).format(ours)).collect(),
            "plain": lambda turn: self._spark.sql(asked(turn).format(view)).collect(),
            "ours_fresh": lambda turn: self._mirror.at("latest").sql(asked(turn).format(ours)).collect(),
            "plain_fresh": again,
        }
        found = by_turns(ways, TURNS, WARMING)
        figures = {
            f"{name}_over_plain": found["ours"] / found["plain"],
            f"{name}_over_plain_fresh": found["ours_fresh"] / found["plain_fresh"],
        } | {f"{name}_{way}_ms": seconds * 1000 for way, seconds in found.items()}
        print("  " + ", ".join(f"{key} {value:.2f}" for key, value in figures.items()), flush=True)
        return figures

    def sizes(self) -> dict[str, float]:
        """The number of files, and the size of both forms."""
        live = self._bench.live(self.table)
        return {
            "folded_files": float(len(live)),
            "folded_bytes": float(size_bytes(live)),
            "plain_bytes": float(size_bytes(self.paths)),
        }

    def require_equal(self, statement: str) -> None:
        """Require the same answer from both forms; averages of doubles may differ in their last digits."""
        ours = self._mirror.at("latest").sql(statement.format(f"public.{self.table}")).drop("avg(score)").collect()
        plain = self._spark.sql(statement.format(f"plain_{self.table}")).drop("avg(score)").collect()
        if ours != plain:
            raise SystemExit(f"{self.table}: {ours}, expected {plain}")

    def require_right(self, statement: str) -> None:
        """Require the same answer as from PostgreSQL."""
        ((ours,),) = self._mirror.at("latest").sql(statement.format(f"public.{self.table}")).collect()
        ((right,),) = self._bench.side.database.run(statement.format(self.table))
        if ours != right:
            raise SystemExit(f"{self.table}: {ours}, expected {right} as in PostgreSQL")


if __name__ == "__main__":
    main()
