"""Whether two answers to one statement are the same, and the counts over many statements."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from tests.sql_parity.routes import Answer, Route

REASONS, SHOWN = 12, 20
_LIMIT = re.compile(r"\s+limit\s+\d+\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement, the settings of its session, and whether its ORDER BY leaves nothing open."""

    sql: str
    ordered: bool = False
    settings: tuple[str, ...] = ()
    kind: str = ""


@dataclass
class Findings:
    """What the comparison of some statements found."""

    statements: int = 0
    by_mirror: int = 0
    refused_by_both: int = 0
    empty: int = 0
    tied: int = 0
    differences: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)

    def add(self, other: Findings) -> None:
        """Add what another comparison found."""
        self.statements += other.statements
        self.by_mirror += other.by_mirror
        self.refused_by_both += other.refused_by_both
        self.empty += other.empty
        self.tied += other.tied
        self.differences += other.differences
        self.reasons.update(other.reasons)
        self.kinds.update(other.kinds)

    def __str__(self) -> str:
        counted = f"{self.statements} statements, {self.by_mirror} by the mirror, {len(self.differences)} differences"
        others = f"{self.refused_by_both} refused by both, {self.empty} empty, {self.tied} with ties in another order"
        lines = [f"{counted}, {others}"]
        if self.kinds:
            lines.append("  by the mirror: " + ", ".join(f"{kind} {n}" for kind, n in self.kinds.most_common()))
        lines += [f"  passed through: {count:6} {reason}" for reason, count in self.reasons.most_common(REASONS)]
        return "\n".join(lines + self.differences[:SHOWN])


def difference(statement: Statement, expected: Answer, found: Answer) -> str:
    """What differs between the source's answer and another, empty if nothing does."""
    if expected.error or found.error:
        return "" if expected.error == found.error else "an error"
    if expected.columns != found.columns:
        return "the columns"
    if statement.ordered:
        return "" if expected.rows == found.rows else "the rows or their order"
    return "" if Counter(expected.rows) == Counter(found.rows) else "the rows"


def compare(statement: Statement, source: Route, route: Route, again: str, findings: Findings) -> None:
    """Run a statement on both routes, and count what comes back; `again` says how to repeat it."""
    found = route.run(statement.sql, statement.settings)
    findings.statements += 1
    if found.passed:
        findings.reasons[found.reason] += 1
        return
    expected = source.run(statement.sql, statement.settings)
    findings.by_mirror += found.by_mirror
    findings.refused_by_both += bool(expected.error and found.error)
    findings.empty += found.by_mirror and not found.rows
    findings.tied += not statement.ordered and expected.rows != found.rows
    if found.by_mirror:
        findings.kinds[statement.kind] += 1
    else:
        findings.reasons[found.reason] += 1
    what = difference(statement, expected, found)
    if what == "the rows" and only_ties(statement, source, route, found):
        what = ""
    if what:
        findings.differences.append(
            f"difference in {what} ({again}; by the mirror: {found.by_mirror})\n"
            + "".join(f"  {setting};\n" for setting in statement.settings)
            + f"  {statement.sql}\n  source: {expected}\n  found:  {found}"
        )


def only_ties(statement: Statement, source: Route, route: Route, found: Answer) -> bool:
    """Whether a LIMIT cut through equal sort keys: without it both have the same rows, and these are some of them."""
    whole = Statement(_LIMIT.sub("", statement.sql), settings=statement.settings)
    if whole.sql == statement.sql:
        return False
    expected, again = (each.run(whole.sql, whole.settings) for each in (source, route))
    return not difference(whole, expected, again) and Counter(found.rows) <= Counter(expected.rows)
