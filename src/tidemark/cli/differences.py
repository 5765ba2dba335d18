"""The results of `tidemark compare` as lines and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidemark.cli.printing import observed
from tidemark.mirror.compare.narrowing import Difference, Differing, FoundDifferences
from tidemark.reads.digests import RowDigest
from tidemark.target.state import ClonePhase

if TYPE_CHECKING:
    from tidemark.clock import Boundary, Lsn
    from tidemark.lake.polls import Poll
    from tidemark.mirror.compare.comparison import Compared, Comparison
    from tidemark.postgres.dsn import Dsn
    from tidemark.target.compare.aligned import ComparedSnapshots
    from tidemark.target.compare.servers import ComparedObject

_WIDTH = 12  # of a verdict


def boundary_line(boundary: Boundary, poll: Poll | None) -> str:
    """Return the line with the position of a comparison of a lake."""
    if poll is not None:
        return f"compared at {boundary.lsn}, {observed(poll)}"
    count = len(boundary.excluded)
    hidden = f", without {count} commit{'s' * (count > 1)} not visible to the snapshot" if count else ""
    return f"compared at {boundary.lsn}{hidden}"


def lake_lines(done: Compared, values: bool) -> list[str]:
    """Return a table of a lake as lines."""
    name = f"{done.table} (without inheriting tables)" if done.only else done.table
    if done.source is None or done.mirror is None:
        return [f"{done.verdict.value:<{_WIDTH}}  {name}: {done.reason}"]
    first = f"{done.verdict.value:<{_WIDTH}}  {name}  {_printed(done.source)}  {done.seconds:.1f} s"
    if done.found is None:
        return [first]
    return [f"{first}\n{'':<{_WIDTH}}  mirror: {_printed(done.mirror)}", *_rows(done.found, "mirror", values)]


def servers_line(source: Dsn, target: Dsn, taken: ComparedSnapshots) -> str:
    """Return the first line of a comparison of two servers."""
    if taken.lsn is not None:
        return f"comparing {source} with {target} at {taken.lsn}"
    clone, note = taken.clone, ""
    if clone is not None and clone.may_follow:
        note = f" as they are: no process follows the source for clone {clone.name}"
    elif clone is not None and clone.phase is not ClonePhase.COMPLETE:
        note = f" as they are: clone {clone.name} is as of its last poll"
    return f"comparing {source} with {target}{note}"


def server_lines(done: ComparedObject, values: bool) -> list[str]:
    """Return a table or sequence of two servers as lines."""
    name = done.name if done.kind == "table" else f"{done.kind} {done.name}"
    definition = [f"    {difference}" for difference in done.definition]
    if done.source is None or done.target is None:
        reason = f": {done.reason}" if done.reason else ""
        return [f"{done.verdict.value:<{_WIDTH}}  {name}{reason}", *definition]
    first = f"{done.verdict.value:<{_WIDTH}}  {name}  {_printed(done.source)}  {done.seconds:.1f} s"
    if done.found is None:
        return [first, *definition]
    second = f"{'':<{_WIDTH}}  target: {_printed(done.target)}"
    return [f"{first}\n{second}", *definition, *_rows(done.found, "target", values)]


def _printed(digest: RowDigest) -> str:
    return f"{digest.rows:,} rows  {digest}"


def _rows(found: FoundDifferences, other: str, values: bool) -> list[str]:
    """Return the rows that differ; `other` is the side that is compared with the source."""
    kinds = {
        Difference.MISSING: f"missing in the {other}",
        Difference.EXTRA: f"only in the {other}",
        Difference.OTHER: "different values",
    }
    lines = []
    for row in found.differing:
        columns = f"  {', '.join(row.columns)}" if row.columns else ""
        lines.append(f"    {kinds[row.how]:<22} {row.key if row.key is not None else '(no key)'}{columns}")
        if values:
            lines += [f"        source  {text}" for text in row.source]
            lines += [f"        {other}  {text}" for text in row.other]
    return [*lines, "    … more rows differ (raise --limit)"] if found.more else lines


def lake_json(done: Compared, comparison: Comparison, values: bool) -> dict[str, Any]:
    """Return a table of a lake as plain values."""
    found, boundary = done.found, comparison.boundary
    return {
        "table": done.table,
        "only": done.only,
        "verdict": done.verdict.value,
        "lsn": str(boundary.lsn) if boundary is not None else None,
        "excluded": [str(lsn) for lsn in sorted(boundary.excluded)] if boundary is not None else [],
        "observed": comparison.observed is not None,
        "seconds": round(done.seconds, 3),
        "source": _plain(done.source),
        "mirror": _plain(done.mirror),
        "reason": done.reason or None,
        "differing": [_plain_row(row, "mirror", values) for row in found.differing] if found is not None else [],
        "more": found.more if found is not None else False,
    }


def server_json(done: ComparedObject, lsn: Lsn | None, values: bool) -> dict[str, Any]:
    """Return a table or sequence of two servers as plain values."""
    rows = done.found.differing if done.found is not None else ()
    return {
        "name": done.name,
        "kind": done.kind,
        "lsn": str(lsn) if lsn is not None else None,
        "verdict": done.verdict.value,
        "seconds": round(done.seconds, 3),
        "source": _plain(done.source),
        "target": _plain(done.target),
        "reason": done.reason or None,
        "definition": list(done.definition),
        "differing": [{**_plain_row(row, "target", values), "columns": list(row.columns)} for row in rows],
        "more": done.found.more if done.found is not None else False,
    }


def _plain(digest: RowDigest | None) -> dict[str, Any] | None:
    return {"rows": digest.rows, "digest": str(digest)} if digest is not None else None


def _plain_row(row: Differing, other: str, values: bool) -> dict[str, Any]:
    rows = {"source": list(row.source), other: list(row.other)} if values else {}
    return {"difference": row.how.value, "key": row.key, **rows}
