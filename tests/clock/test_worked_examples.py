"""The founding document's worked examples A to L, as PostgreSQL really behaves (commit LSN = the record's end)."""

import pytest

from tidemark.clock import Boundary, Lsn, Snapshot, Version, Xid8, contents, visible

pytestmark = pytest.mark.quick

Commits = dict[int, int]  # xid -> commit LSN


def boundary(snapshot: str, lsn: int, commits: Commits) -> Boundary:
    return Boundary.of_snapshot(Snapshot.parse(snapshot), Lsn(lsn), [(Xid8(x), Lsn(c)) for x, c in commits.items()])


def rows(versions: dict[str, tuple[int, int | None]], at: Boundary) -> set[str]:
    return {
        row
        for row, (begin, end) in versions.items()
        if visible(Version(row, Lsn(begin), Lsn(end) if end else None), at)
    }


def versions_of_a(t7: int) -> dict[str, tuple[int, int | None]]:
    return {"R1": (100, None), "R2": (100, 120), "R3": (120, None), "R6": (t7, None), "R7": (t7, t7)}


def test_a1_a_transaction_that_commits_after_the_snapshot_is_hidden() -> None:
    at = boundary("5:8:5,7", 130, {1: 100, 2: 120, 3: 130})
    assert rows(versions_of_a(t7=140), at) == {"R1", "R3"}
    later = boundary("5:8:5,7", 130, {1: 100, 2: 120, 3: 130, 7: 140})
    assert later == at, "a commit above the insert LSN does not move the boundary"


def test_a2_a_transaction_that_committed_before_the_snapshot_is_shown_and_its_own_delete_hides_r7() -> None:
    at = boundary("5:8:5", 130, {1: 100, 2: 120, 3: 130, 7: 125})
    assert at == Boundary(Lsn(130))
    assert rows(versions_of_a(t7=125), at) == {"R1", "R3", "R6"}


def test_b_an_update_chain_shows_one_version_at_every_lsn() -> None:
    chain: dict[str, tuple[int, int | None]] = {"A": (210, 240), "A'": (240, None)}
    assert [rows(chain, Boundary(Lsn(at))) for at in (209, 210, 239, 240, 999)] == [set(), {"A"}, {"A"}, {"A'"}, {"A'"}]


def test_c_a_delete_hides_from_its_commit_on() -> None:
    chain: dict[str, tuple[int, int | None]] = {"A'": (240, 300)}
    assert rows(chain, Boundary(Lsn(299))) == {"A'"}
    assert rows(chain, Boundary(Lsn(300))) == set()


def test_d_subtransactions_are_stamped_by_their_top_level_commit() -> None:
    x: dict[str, tuple[int, int | None]] = {"X": (400, 400), "X'": (400, None)}
    assert rows(x, Boundary(Lsn(399))) == set()
    assert rows(x, Boundary(Lsn(400))) == {"X'"}


def test_e_a_prepared_transaction_appears_at_commit_prepared() -> None:
    y: dict[str, tuple[int, int | None]] = {"Y": (500, None)}
    prepared = boundary("30:31:30", 499, {})
    assert rows(y, prepared) == set()
    assert rows(y, boundary("31:31:", 500, {30: 500})) == {"Y"}


def test_f_a_commit_whose_xid_still_runs_in_the_snapshot_stays_hidden_and_nothing_else_does() -> None:
    versions: dict[str, tuple[int, int | None]] = {"T8": (600, None), "T9": (610, None)}
    at = boundary("8:10:8", 620, {8: 600, 9: 610})
    assert at == Boundary(Lsn(620), frozenset({Lsn(600)}))
    assert rows(versions, at) == {"T9"}


def test_g_commit_order_against_visibility_order_has_no_scalar_boundary() -> None:
    versions: dict[str, tuple[int, int | None]] = {"T3": (101, None), "T2": (102, None)}
    at = boundary("3:4:3", 102, {3: 101, 2: 102})
    assert rows(versions, at) == {"T2"}
    assert all(rows(versions, Boundary(Lsn(lsn))) != {"T2"} for lsn in range(99, 105))


def test_h_an_asynchronous_commit_is_bounded_by_the_insert_lsn_not_the_flush_lsn() -> None:
    versions: dict[str, tuple[int, int | None]] = {"T40": (700, None)}
    flush, insert = 690, 700
    assert rows(versions, boundary("41:41:", insert, {40: 700})) == {"T40"}
    assert rows(versions, boundary("41:41:", flush, {40: 700})) == set(), "the flush LSN would have been too low"


def test_i_a_join_is_read_at_one_boundary_whatever_each_table_last_saw() -> None:
    quiet: dict[str, tuple[int, int | None]] = {"a": (980, None)}
    busy: dict[str, tuple[int, int | None]] = {"b1": (990, 1005), "b2": (1005, None)}
    at = Boundary(Lsn(1000))
    assert (rows(quiet, at), rows(busy, at)) == ({"a"}, {"b1"})


def test_j_one_known_commit_among_many_running_ids_hides_only_itself() -> None:
    running = ",".join(map(str, range(51, 81)))
    versions: dict[str, tuple[int, int | None]] = {"T59": (1200, None), "T49": (1230, None)}
    at = boundary(f"51:81:{running}", 1250, {59: 1200, 49: 1230})
    assert rows(versions, at) == {"T49"}, "a fence at 1199 would have lost T49"


def test_k_a_row_inserted_and_deleted_by_one_transaction_is_never_seen() -> None:
    y = Version("Y", Lsn(1400), Lsn(1400))
    for at in (Boundary(Lsn(1399)), Boundary(Lsn(1400)), Boundary(Lsn(1500), frozenset({Lsn(1400)}))):
        assert not visible(y, at)
        assert not contents([y], at)


def test_l_an_aborted_transaction_has_no_commit_and_so_no_versions() -> None:
    at = boundary("71:71:", 1500, {})
    assert at == Boundary(Lsn(1500))
    assert not contents([], at)


def test_errata_an_xid_at_or_above_xmax_may_be_committed_below_the_lsn_and_is_hidden() -> None:
    at = boundary("10:10:", 900, {10: 880})
    assert at.excluded == {Lsn(880)}
    assert at.floor == Lsn(879)


def test_errata_with_the_records_start_as_the_commit_lsn_a_later_commit_would_show() -> None:
    """T1's record spans [100, 140), T2's [140, 180). A read at T1's end must not see T2, which starts there."""
    end_of_t1 = Boundary(Lsn(140))
    assert end_of_t1.sees(Lsn(140))
    assert not end_of_t1.sees(Lsn(180))
    start_of_t2 = Lsn(140)
    assert end_of_t1.sees(start_of_t2), "which is why the start cannot be the clock"
