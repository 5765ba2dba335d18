"""Every interleaving of three transactions on a model of PostgreSQL: the boundary sees what the snapshot sees.

Each transaction begins (takes the next xid), logs its commit record (takes the next LSN) and leaves the ProcArray
(becomes visible), in this order; between transactions any order is possible. That is all of PostgreSQL that matters
here (`CommitTransaction`, `ProcArrayEndTransaction`, `GetSnapshotData`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.clock import Boundary, Lsn, Snapshot, Version, Xid8, contents, visible

pytestmark = pytest.mark.quick

TRANSACTIONS = 3
FIRST_XID = 100


@dataclass(frozen=True)
class Moment:
    snapshot: Snapshot
    insert_lsn: Lsn
    commits: tuple[tuple[Xid8, Lsn], ...]
    seen: frozenset[Xid8]


def interleavings() -> Iterator[tuple[int, ...]]:
    steps = tuple(t for t in range(TRANSACTIONS) for _ in range(3))
    yield from sorted(set(permutations(steps)))


def moments(order: tuple[int, ...]) -> Iterator[Moment]:
    step = [0] * TRANSACTIONS
    xid: dict[int, Xid8] = {}
    commits: list[tuple[Xid8, Lsn]] = []
    running: set[Xid8] = set()
    ended: set[Xid8] = set()
    lsn = 1000
    for t in (*order, None):
        xmax = Xid8(max((x.value for x in ended), default=FIRST_XID - 1) + 1)
        xip = tuple(sorted(x for x in running if x < xmax))
        yield Moment(Snapshot(min((*xip, xmax)), xmax, xip), Lsn(lsn), tuple(commits), frozenset(ended))
        if t is None:
            return
        if step[t] == 0:
            xid[t] = Xid8(FIRST_XID + len(xid))
            running.add(xid[t])
        elif step[t] == 1:
            lsn += 10
            commits.append((xid[t], Lsn(lsn)))
        else:
            running.remove(xid[t])
            ended.add(xid[t])
        step[t] += 1


def test_a_boundary_sees_exactly_the_commits_its_snapshot_saw() -> None:
    checked = without_prefix = 0
    for order in interleavings():
        for moment in moments(order):
            boundary = Boundary.of_snapshot(moment.snapshot, moment.insert_lsn, moment.commits)
            assert {x for x, c in moment.commits if boundary.sees(c)} == moment.seen
            prefixes = [
                {x for x, c in moment.commits if c <= Lsn(bound)}
                for bound in (0, *(c.value for _, c in moment.commits))
            ]
            checked += 1
            without_prefix += moment.seen not in prefixes
    assert checked == 1680 * 10
    assert without_prefix > 0, "the world is too small to show that a lone LSN is not a snapshot"


def test_later_commits_do_not_change_what_an_old_snapshot_saw() -> None:
    for order in interleavings():
        history = list(moments(order))
        final = history[-1].commits
        for moment in history:
            boundary = Boundary.of_snapshot(moment.snapshot, moment.insert_lsn, final)
            assert {x for x, c in final if boundary.sees(c)} == moment.seen


lsns = st.integers(1, 12).map(Lsn)


@st.composite
def boundaries(draw: st.DrawFn) -> Boundary:
    at = draw(st.integers(1, 14))
    return Boundary(Lsn(at), frozenset(draw(st.sets(st.integers(1, at).map(Lsn), max_size=5))))


@given(lsns, st.none() | lsns, boundaries())
def test_visibility_is_the_formula(begin: Lsn, end: Lsn | None, b: Boundary) -> None:
    formula = begin <= b.lsn and begin not in b.excluded and (end is None or end > b.lsn or end in b.excluded)
    assert visible(Version("r", begin, end), b) == formula


@given(boundaries(), st.integers(1, 14).map(Lsn))
def test_at_or_below_the_floor_nothing_is_excluded(b: Boundary, commit: Lsn) -> None:
    if commit <= b.floor:
        assert b.sees(commit)
    assert b.floor <= b.lsn
    assert b.floor == b.lsn or b.floor.value + 1 in {e.value for e in b.excluded}


@given(
    st.lists(st.tuples(st.sampled_from("ab"), lsns, st.none() | lsns), max_size=8),
    boundaries(),
    st.randoms(use_true_random=False),
)
def test_the_multiset_does_not_depend_on_which_equal_row_a_delete_was_paired_with(
    physical: list[tuple[str, Lsn, Lsn | None]], b: Boundary, random: object
) -> None:
    """PostgreSQL's own rows give the truth; any re-pairing of the removals among equal rows gives the same sum."""
    truth = [Version(row, begin, end) for row, begin, end in physical if end is None or end >= begin]
    if any(v.end is not None and b.sees(v.end) and not b.sees(v.begin) for v in truth):
        return  # a reader that sees a removal sees what it removed: PostgreSQL has no such snapshot
    repaired = []
    for row in "ab":
        same = [v for v in truth if v.row == row]
        ends = [v.end for v in same]
        random.shuffle(ends)  # type: ignore[attr-defined]
        repaired += [Version(row, v.begin, end) for v, end in zip(same, ends, strict=True)]
    expected = {row: n for row in "ab" if (n := sum(visible(v, b) for v in truth if v.row == row))}
    assert contents(repaired, b) == expected


def test_the_example_for_which_no_pairing_is_right() -> None:
    """Equal rows by T1 and T2; T3 removes one of them. Readers may exclude T1 or T2, so neither pairing serves both."""
    t1, t2, t3 = Lsn(10), Lsn(20), Lsn(30)
    pairings = (
        [Version("r", t1, t3), Version("r", t2)],
        [Version("r", t1), Version("r", t2, t3)],
    )
    for excluded in (t1, t2):
        b = Boundary(Lsn(30), frozenset({excluded}))
        assert [contents(p, b)["r"] for p in pairings] == [0, 0]
        assert [sum(visible(v, b) for v in p) for p in pairings] in ([0, 1], [1, 0]), "row by row it would be a guess"
