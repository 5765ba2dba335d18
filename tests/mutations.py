"""Deliberate defects that the quick tests must notice: `python -m tests.mutations [NAME ...]`, or `make mutations`.

Each mutation is applied to a copy of the checkout, where the quick ones of the tests that are named for it run. It is
noticed if one of them fails. A mutation whose tests pass, time out or cannot run is reported with the end of pytest's
output, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "harness")
LIMIT_S = 900.0
TAIL_LINES = 30
TESTS_FAILED = 1  # pytest's exit code
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Mutation:
    """A defect: `old` occurs once in `file`, a path below src/tidemark, and becomes `new`.

    `tests` are the arguments that select the tests for pytest.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a mutation's tests. `code` is pytest's exit code, None if the time limit was reached."""

    code: int | None
    seconds: float
    failed: str | None
    output: str

    @property
    def noticed(self) -> bool:
        """Whether a test failed; an error in a fixture is not enough, since a missing server causes one too."""
        return self.code == TESTS_FAILED and self.failed is not None


MUTATIONS = (
    Mutation(
        "clock: a boundary does not see the commit at its own LSN",
        "clock/boundary.py",
        "return commit <= self.lsn and commit not in",
        "return commit < self.lsn and commit not in",
        ("tests/clock/test_worked_examples.py",),
    ),
    Mutation(
        "clock: a commit at the snapshot's LSN is shown although it was still running",
        "clock/boundary.py",
        "if commit <= lsn and not snapshot.sees(xid)",
        "if commit < lsn and not snapshot.sees(xid)",
        ("tests/clock/test_small_worlds.py", "-k", "sees_exactly_the_commits"),
    ),
    Mutation(
        "clock: a clone applies the commit at the LSN of its copy again",
        "reads/visible.py",
        "seen = commits <= np.uint64(boundary.lsn.value)",
        "seen = commits < np.uint64(boundary.lsn.value)",
        ("tests/reads/test_visible.py", "-k", "numpy"),
    ),
    Mutation(
        "postgres: a minor release whose stream is incomplete is not polled either",
        "postgres/requirements/reading.py",
        "require([version_of(session)], Mode.POLL)",
        "require([version_of(session)], Mode.LOGICAL)",
        ("tests/postgres/test_requirements.py", "-k", "stream_is_incomplete"),
    ),
    Mutation(
        "schema: another key is taken for a change of metadata",
        "schema/fingerprint.py",
        'yield Effect.RESYNC, f"its key changed from columns',
        'yield Effect.METADATA, f"its key changed from columns',
        ("tests/schema/test_fingerprint.py", "-k", "resync and moved"),
    ),
    Mutation(
        "decode: the last digits of a numeric are read at the wrong scale",
        "values/numeric.py",
        "min(4, scale - 4 * (-group - 1))",
        "min(4, scale)",
        ("tests/values/test_numeric.py", "-k", "every_size"),
    ),
    Mutation(
        "encode: a float is printed as a decimal halfway to its neighbor",
        "values/floats.py",
        "tens + ten << two < high",
        "tens + ten << two <= high",
        ("tests/values/test_values.py", "-k", "every_power_of_two"),
    ),
    Mutation(
        "encode: an element that reads NULL is not quoted",
        "values/arrays.py",
        "if lengths[i] == 4 and not quote:",
        "if lengths[i] == -4 and not quote:",
        ("tests/values/test_encoding.py", "-k", "every_value"),
    ),
    Mutation(
        "decode: an infinite timestamp is read as 1970",
        "values/dates.py",
        "array = fixed(kind, out, cells.lengths, strange)",
        "array = fixed(kind, out, cells.lengths)",
        ("tests/lake/test_rows.py", "-k", "twin"),
    ),
    Mutation(
        "decode: a rollback to a savepoint drops the other rows of its transaction",
        "pgoutput/assembly.py",
        "self.streamed[xid].aborted.add(subxid)",
        "self.streamed[xid].aborted.add(xid)",
        ("tests/log/test_reader.py", "-k", "every_moment_of_writing"),
    ),
    Mutation(
        "decode: a commit exactly at endpos is left out",
        "pgoutput/events.py",
        """\
            if lsn > endpos:
                beyond = True
                break
            count = _emit(events, count, _E_COMMIT,""",
        """\
            if lsn >= endpos:
                beyond = True
                break
            count = _emit(events, count, _E_COMMIT,""",
        ("tests/receive/test_endpos.py", "-k", "one_a_byte_above"),
    ),
    Mutation(
        "log: a torn tail is not cut",
        "log/recovery.py",
        "if read.end < disk.size(segment_path(folder, number)):",
        "if read.end > disk.size(segment_path(folder, number)):",
        ("tests/log/test_damage.py", "-k", "torn_tail_of_zeros"),
    ),
    Mutation(
        "log: a snapshot's search in the commit index stops one commit early",
        "log/index.py",
        'np.uint64(lsn.value), side="right")',
        'np.uint64(lsn.value), side="left")',
        ("tests/log/test_index.py", "-k", "very_position"),
    ),
    Mutation(
        "log: a slice has the commit at its start and lacks the one at its end",
        "log/reader.py",
        'np.array([after.value, upto.value], np.uint64), "right")',
        'np.array([after.value, upto.value], np.uint64), "left")',
        ("tests/log/test_reader.py", "-k", "came_later"),
    ),
    Mutation(
        "log: what is written counts as durable before it is synced",
        "log/writer.py",
        "return Lsn(self._durable)",
        "return Lsn(self._tail.position)",
        ("tests/log/test_power_loss.py", "-k", "after_any_operation"),
    ),
    Mutation(
        "receive: a record that ends just after a page's header counts as received too early",
        "receive/control.py",
        "header = 40 if lsn.value % wal_segment_bytes == 40 else 24",
        "header = 40 if lsn.value % 8192 == 40 else 24",
        ("tests/receive/test_control.py", "-k", "pages_header"),
    ),
    Mutation(
        "receive: the source is told that everything received is flushed",
        "receive/pump.py",
        "return progress.durable if endpos is None",
        "return progress.received if endpos is None",
        ("tests/receive/test_behind_our_back.py", "-k", "removed_under_us"),
    ),
    Mutation(
        "lake: an unchanged TOAST value is taken from the wrong row",
        "lake/rows.py",
        "chosen = np.where(from_old, len(batch) + old_of[order.change], chosen)",
        "chosen = np.where(from_old, len(batch) + order.old, chosen)",
        ("tests/lake/test_rows.py", "-k", "old_row_that_is_whole"),
    ),
    Mutation(
        "storage: the name of a control file is not synced",
        "storage/disk.py",
        """            self.replace(new, path)
        self.sync_folder(path.parent)
""",
        """            self.replace(new, path)
""",
        ("tests/storage/test_durability.py",),
    ),
    Mutation(
        "storage: put-if-absent succeeds although the object exists",
        "storage/disk.py",
        """            except FileExistsError:
                return False
""",
        """            except FileExistsError:
                return True
""",
        ("tests/storage/test_storage.py", "-k", "put_once"),
    ),
    Mutation(
        "lake: files have bounds of floating-point columns, which leave NaN out",
        "lake/files.py",
        "if pa.types.is_nested(kind) or pa.types.is_floating(kind):",
        "if pa.types.is_nested(kind):",
        ("tests/mirror/test_floats.py",),
    ),
    Mutation(
        "differential: files have bounds of floating-point columns",
        "lake/files.py",
        "if pa.types.is_nested(kind) or pa.types.is_floating(kind):",
        "if pa.types.is_nested(kind):",
        ("tests/differential/test_differential.py",),
    ),
    Mutation(
        "lake: decimals become texts with exponents",
        "lake/columns.py",
        "return Values(column_strings(values))",
        "return Values(values.array.cast(pa.string()))",
        ("tests/mirror/test_numeric_text.py",),
    ),
    Mutation(
        "query: a dropped column is looked for where its values were not sent",
        "reads/unchanged.py",
        "unsent = sorted(unsent_columns(steps) & columns.keys())",
        "unsent = sorted(unsent_columns(steps))",
        ("tests/mirror/test_unchanged.py",),
    ),
    Mutation(
        "query: an update that changes the key takes its values from a former row with the new key",
        "reads/unchanged.py",
        "return np.where(old >= 0, previous[old], previous)",
        "return previous",
        ("tests/mirror/test_unchanged.py",),
    ),
    Mutation(
        "query: a removed row is a source of unchanged values",
        "reads/unchanged.py",
        "np.where((sources >= 0) & removes[sources], LOST, sources)",
        "sources",
        ("tests/mirror/test_unchanged.py",),
    ),
    Mutation(
        "query: a carried row hides the values of other changes",
        "reads/unchanged.py",
        "if sent_by.get(attnum) != source)",
        "if attnum not in sent_by)",
        ("tests/mirror/test_unchanged.py",),
    ),
    Mutation(
        "apply: a TRUNCATE during a copy is no beginning",
        "schema/copy_state.py",
        "if lsn > self._whole_since[oid]:",
        "if lsn < self._whole_since[oid]:",
        ("tests/pipeline/sync/test_truncates.py",),
    ),
    Mutation(
        "lake: files have dictionaries of floating-point columns, in which 0 is not -0",
        "lake/files.py",
        "pa.types.is_boolean(kind) or pa.types.is_floating(kind):",
        "pa.types.is_boolean(kind):",
        ("tests/mirror/test_floats.py",),
    ),
    Mutation(
        "lake: deltalake finds no rows by columns that have no bounds",
        "lake/versions.py",
        'STATISTICS: ",".join(INTERVAL.names)}',
        '"delta.dataSkippingNumIndexedCols": "-1"}',
        ("tests/mirror/test_outside.py", "-k", "any_column"),
    ),
    Mutation(
        "lake: a dropped table shows its last rows to other engines",
        "lake/versions.py",
        "if present.base < lsn:",
        "if present.base > lsn:",
        ("tests/mirror/test_outside.py", "-k", "swaps_and_drops"),
    ),
    Mutation(
        "differential: files have dictionaries of floating-point columns",
        "lake/files.py",
        "pa.types.is_boolean(kind) or pa.types.is_floating(kind):",
        "pa.types.is_boolean(kind):",
        ("tests/differential/test_differential.py",),
    ),
    Mutation(
        "lake: a table takes the changes of one cycle twice",
        "lake/commits.py",
        "if what.lsn <= applied(table) and not what.anew:",
        "if what.lsn < applied(table) and not what.anew:",
        ("tests/pipeline/apply/test_one_writer.py", "-k", "never_goes_back"),
    ),
    Mutation(
        "lake: a commit that a copy did not see is not applied after it",
        "lake/versions.py",
        "return base if versions is None or versions.folded == base.lsn else Boundary(versions.folded)",
        "return base if versions is None else Boundary(versions.folded)",
        ("tests/pipeline/sync/test_faults.py", "-k", "logged_and_not_seen"),
    ),
    Mutation(
        "apply: a table begins while transactions older than its publication run",
        "schema/copy_state.py",
        "snapshot.snapshot.xmin >= seen[1].xmax",
        "snapshot.snapshot.xmax >= seen[1].xmax",
        ("tests/pipeline/apply/test_schema.py", "-k", "older_than_its_publication"),
    ),
    Mutation(
        "apply: changes that a table already has are written again",
        "pipeline/sinks/lake_changes.py",
        "keep = batch.commit_lsns > np.uint64(self.target.applied_lsn(layout.oid).value)",
        "keep = batch.commit_lsns > np.uint64(0)",
        ("tests/pipeline/apply/test_crashes.py", "-k", "struck"),
    ),
    Mutation(
        "lake: a writer that lost a register to another goes on",
        "lake/registers.py",
        "there = opened(self.folder)",
        "there = self.table = opened(self.folder)",
        ("tests/pipeline/apply/test_one_writer.py", "-k", "stale_register"),
    ),
    Mutation(
        "lake: an index of a key is used for another key",
        "lake/key_index.py",
        " or data[_HEADER.size : at] != _kinds(columns):",
        ":",
        ("tests/lake/test_key_index.py",),
    ),
    Mutation(
        "read: a row is looked for among the changed rows of another file",
        "reads/places.py",
        "words[0][file.size_bytes % modulus] = used",
        "words[0][file.size_bytes % modulus] = modulus",
        ("tests/mirror/test_places.py", "-k", "whatever_the_key"),
    ),
    Mutation(
        "fold: a delete does not end the row that it removes",
        "pipeline/fold/merge.py",
        "ends = np.where(ordered.goes_on, np.append",
        "ends = np.where(ordered.goes_on & np.append(ordered.is_row[1:], False), np.append",
        ("tests/pipeline/fold/test_model.py", "-k", "default and not truncated"),
    ),
    Mutation(
        "fold: a TRUNCATE ends the rows after it and not those before it",
        "pipeline/fold/merge.py",
        "np.array([*(commit for commit, _ in sorted(truncates)), _NEVER], np.int64)",
        "np.array([_NEVER, *(commit for commit, _ in sorted(truncates))], np.int64)",
        ("tests/pipeline/fold/test_model.py", "-k", "default and truncated"),
    ),
    Mutation(
        "query: folded rows are shown although their commits are excluded",
        "reads/versions.py",
        "below = boundary.floor",
        "below = boundary.lsn",
        ("tests/pipeline/fold/test_model.py", "-k", "default and not truncated"),
    ),
    Mutation(
        "query: a TRUNCATE keeps the rows that its own transaction had inserted",
        "reads/contents.py",
        '(F.col("ordinal") > ordinal)',
        '(F.col("ordinal") != ordinal)',
        ("tests/mirror/test_contents.py", "-k", "a_truncate_removes"),
    ),
    Mutation(
        "query: a parent does not show the rows of the tables that inherit from it",
        "mirror/moment.py",
        "if not history.is_union and (only or not span.fingerprint.children):",
        "if not history.is_union:",
        ("tests/pipeline/sync/test_inheritance.py",),
    ),
    Mutation(
        "compare: a parent is compared without its children",
        "mirror/compare/comparison.py",
        "if is_parent:",
        "if False:",
        ("tests/mirror/compare/test_compare.py", "-k", "as_a_session_sees_it"),
    ),
    Mutation(
        "query: a read at the time of a commit does not see it",
        "log/commits.py",
        'np.searchsorted(latest, micros, side="right")',
        'np.searchsorted(latest, micros, side="left")',
        ("tests/mirror/test_times.py", "-k", "the_time_of_a_position"),
    ),
    Mutation(
        "sync: the last page of every part is not copied",
        "pipeline/copy/reading.py",
        'sql.Literal(f"({part.end},0)")',
        'sql.Literal(f"({part.end - 1},0)")',
        ("tests/pipeline/sync/test_sources.py", "-k", "what_the_snapshot_shows"),
    ),
    Mutation(
        "poll: the xmin window ends one transaction early",
        "pipeline/poll/horizon.py",
        "span = later.xmax.value - earlier.xmin.value",
        "span = later.xmax.value - earlier.xmin.value - 1",
        ("tests/pipeline/poll/test_horizon.py", "-k", "became_visible"),
    ),
    Mutation(
        "poll: of two rows with one hash none is deleted while one is left",
        "pipeline/poll/mirrored.py",
        "return ones.chosen(~_found(others, ones.hashes))",
        "return ones.chosen(~np.isin(ones.hashes, others))",
        ("tests/pipeline/poll/test_reconcile.py", "-k", "rows_with_one_hash"),
    ),
    Mutation(
        "poll: deleted rows are looked for one poll late",
        "pipeline/poll/poller.py",
        "self._unreconciled + 1 >= self._options.reconcile_every",
        "self._unreconciled + 1 > self._options.reconcile_every",
        ("tests/pipeline/poll/test_poller.py", "-k", "until_they_are_looked_for"),
    ),
    Mutation(
        "compare: rows of a server whose integer key is null have no position",
        "target/compare/catalogs.py",
        "pa.types.is_integer(kind) and nullable else kind",
        "False else kind",
        ("tests/target/test_compare.py", "-k", "keys_that_only_one_server_has"),
    ),
    Mutation(
        "compare: a column that only one server has is not a difference",
        "target/compare/servers.py",
        "verdict = Verdict.DIFFERENT if definition else done.verdict",
        "verdict = done.verdict",
        ("tests/target/test_compare.py", "-k", "of_one_server_are_differences"),
    ),
    Mutation(
        "clone: a row that was updated and deleted is not deleted at the target",
        "target/net.py",
        "operations[row] = NOTHING if origins[row] < 0 else DELETED",
        "operations[row] = NOTHING",
        ("tests/target/test_writer.py", "-k", "changes_leave_the_target_equal"),
    ),
    Mutation(
        "clone: a large value that was not sent again is not taken from the change before",
        "target/net.py",
        "if marked[i] and last[row] >= 0:",
        "if marked[i] and last[row] > i:",
        ("tests/target/test_writer.py", "-k", "earlier_change_of_the_batch"),
    ),
    Mutation(
        "clone: a row whose key changes is updated in place",
        "target/net.py",
        "                operations[row] = MOVED\n",
        "                operations[row] = UPDATED\n",
        ("tests/target/test_writer.py", "-k", "changes_leave_the_target_equal"),
    ),
    Mutation(
        "clone: all equal rows without a key are one",
        "target/net.py",
        "counts[slots[1, at]] += -1 if is_old else 1",
        "counts[slots[1, at]] = -1 if is_old else 1",
        ("tests/target/test_writer.py", "-k", "changes_leave_the_target_equal"),
    ),
    Mutation(
        "clone: new rows are not counted",
        "target/merging.py",
        "        if found != expected:\n            raise RowRejected",
        "        if found > expected:\n            raise RowRejected",
        ("tests/target/test_writer.py", "-k", "target_drops"),
    ),
    Mutation(
        "clone: rows that a merge changes are not counted",
        "target/merging.py",
        "    if found != expected:\n        raise TargetDiffers",
        "    if found > expected:\n        raise TargetDiffers",
        ("tests/target/test_writer.py", "-k", "missing_row"),
    ),
    Mutation(
        "clone: rows that exchange unique values are updated in place",
        "target/merging.py",
        "    if counts.updated and statements.moves is not None:\n",
        "    if None:\n",
        ("tests/target/test_writer.py", "-k", "rows_can_exchange"),
    ),
    Mutation(
        "clone: large values of a row that moves are not taken from the target",
        "target/merging.py",
        "for statement in statements.fetched if counts.moved + moves else ():",
        "for statement in statements.fetched if moves else ():",
        ("tests/target/test_writer.py", "-k", "cast_from_text"),
    ),
    Mutation(
        "clone: the text of a value is its cast to text",
        "target/statements.py",
        "is distinct from null then concat({0}) end",
        "is distinct from null then {0}::text end",
        ("tests/target/test_writer.py", "-k", "cast_from_text"),
    ),
    Mutation(
        "clone: a large value that was not sent again is overwritten",
        "target/statements.py",
        'sql.SQL("get_byte(s.m, {}) = 1")',
        'sql.SQL("get_byte(s.m, {}) = 2")',
        ("tests/target/test_writer.py", "-k", "changes_leave_the_target_equal"),
    ),
    Mutation(
        "clone: of equal rows without a key all are deleted",
        "target/statements.py",
        "on x.content = y.content and x.n <= y.n) gone",
        "on x.content = y.content) gone",
        ("tests/target/test_writer.py", "-k", "changes_leave_the_target_equal"),
    ),
    Mutation(
        "clone: triggers of UPDATE at the target are no obstacle",
        "target/obstacles.py",
        "where t.tgrelid = any(%s) and t.tgenabled",
        "where t.tgrelid = any(%s) and t.tgtype & 16 = 0 and t.tgenabled",
        ("tests/target/test_follow.py", "-k", "acts_on_rows"),
    ),
    Mutation(
        "clone: what is created last is that of the copy",
        "target/schema.py",
        "return open_archive(self.folder / _LAST) if (self.folder / _LAST).exists() else self._archive()",
        "return self._archive()",
        ("tests/target/test_clone.py", "-k", "revoked_or_dropped"),
    ),
    Mutation(
        "clone: a poll that the target has lost is not repeated",
        "target/poll.py",
        "seen.is_same(self._last) and self._is_recorded(record, self._last)",
        "seen.is_same(self._last)",
        ("tests/target/test_target_failures.py", "-k", "poll_that_a_crash"),
    ),
    Mutation(
        "doctor: the source is accepted as its own target",
        "postgres/identity.py",
        "return bool(found)",
        "return False",
        ("tests/target/test_compare.py", "-k", "same_database_twice"),
    ),
    Mutation(
        "compare: only the columns of the key are compared",
        "mirror/compare/comparison.py",
        "ComparedTable(fingerprint, tuple(columns.values()), key,",
        "ComparedTable(fingerprint, key or tuple(columns.values()), key,",
        ("tests/mirror/compare/test_compare.py", "-k", "found_by_its_key"),
    ),
    Mutation(
        "vacuum: the window moves past the position of a lease",
        "pipeline/expire/expiry.py",
        "retained = max(before, min([wanted, *(lease.lsn for lease in leases), *copies]))",
        "retained = max(before, min([wanted, *copies]))",
        ("tests/pipeline/fold/test_vacuum.py", "-k", "open_handle"),
    ),
    Mutation(
        "vacuum: the window moves past the snapshot of a copy that could continue",
        "pipeline/expire/expiry.py",
        "retained = max(before, min([wanted, *(lease.lsn for lease in leases), *copies]))",
        "retained = max(before, min([wanted, *(lease.lsn for lease in leases)]))",
        ("tests/pipeline/sync/test_continued_copies.py", "-k", "parts_that_are_complete"),
    ),
    Mutation(
        "vacuum: files that an open read needs are removed",
        "pipeline/expire/expiry.py",
        "age = max(options.grace_s, time.time() - oldest(leases) + MARGIN_S if leases else 0)",
        "age = options.grace_s",
        ("tests/pipeline/fold/test_vacuum.py", "-k", "open_handle"),
    ),
    Mutation(
        "lake: of polls that found no change only the last is kept",
        "lake/registers.py",
        "np.where(polled, changed | last_of_lsn |",
        "np.where(polled, last_of_lsn |",
        ("tests/lake/test_registers.py",),
    ),
    Mutation(
        "serve: a pipeline is relayed in a session that may read the past",
        "serve/session.py",
        "return self._guards and (self.is_touched or not self.is_answered_by_source)",
        "return False",
        ("tests/serve/test_session.py", "-k", "guarded or rejected"),
    ),
    Mutation(
        "engines: DuckDB moves constants across comparisons",
        "engines/duckdb.py",
        '_INEXACT = "expression_rewriter,statistics_propagation"',
        '_INEXACT = "statistics_propagation"',
        ("tests/engines/test_duckdb.py", "-k", "overflow"),
    ),
    Mutation(
        "lake: a checkpoint is not on disk when the commits before it are deleted",
        "lake/commits.py",
        "_sync_checkpoint(log, last)",
        "sync(log)",
        ("tests/lake/test_delta.py", "-k", "checkpoint"),
    ),
    Mutation(
        "log: an index that has the first running transaction as its last one is not searched",
        "log/commits.py",
        '(self._all["greatest_xid"] >= least)',
        '(self._all["greatest_xid"] > least)',
        ("tests/log/test_commits.py", "-k", "by_snapshot"),
    ),
    Mutation(
        "lake: a table is read again only when its last commit is gone",
        "lake/cached.py",
        "is_last = self._found(version + 1) is None and self._is_same(version)",
        "is_last = self._is_same(version)",
        ("tests/lake/test_cached.py", "-k", "only_after_a_commit"),
    ),
    Mutation(
        "fold: compaction replaces files that expire has removed",
        "lake/commits.py",
        "lambda there: paths if there.issuperset(paths) else ()",
        "lambda there: [path for path in paths if path in there]",
        ("tests/pipeline/fold/test_change_files.py", "-k", "not_brought_back"),
    ),
    Mutation(
        "split: a field of a node that is not read is overlooked",
        "split/nodes.py",
        "        if self.left:\n",
        "        if None:\n",
        ("tests/sql_parity/test_reference.py", "-k", "not_answered_otherwise"),
    ),
    Mutation(
        "split: NOT IN is taken for IN",
        "split/expressions.py",
        'negate=name == "<>")',
        "negate=False)",
        ("tests/sql_parity/test_reference.py", "-k", "each_construct"),
    ),
    Mutation(
        "split: the application's own operators are not excluded",
        "split/facts.py",
        "        if self.operators:\n",
        "        if None:\n",
        ("tests/sql_parity/test_reference.py", "-k", "not_answered_otherwise"),
    ),
    Mutation(
        "split: a cast to fewer digits is left out",
        "split/unified.py",
        "Typed(cast(value.expr, ir.decimal(precision, scale)), type_, scale)",
        "Typed(value.expr, type_, scale)",
        ("tests/sql_parity/test_reference.py", "-k", "each_construct"),
    ),
)


def mutated(mutation: Mutation, root: Path) -> str:
    """The text of the mutated file in the checkout at `root`; ValueError unless `old` occurs exactly once."""
    text = (root / "src" / "tidemark" / mutation.file).read_text()
    if (count := text.count(mutation.old)) != 1:
        raise ValueError(f"{mutation.name}: {mutation.old!r} occurs {count} times in {mutation.file}, expected once")
    return text.replace(mutation.old, mutation.new)


def outcome_of(mutation: Mutation) -> Outcome:
    """Run the tests of a mutation in a mutated copy of the checkout, which shares the checkout's cache."""
    (ROOT / ".cache").mkdir(exist_ok=True)
    with TemporaryDirectory(prefix="tidemark-mutation-", ignore_cleanup_errors=True) as name:
        copy = Path(name)
        for folder in COPIED:
            shutil.copytree(ROOT / folder, copy / folder)  # compiled modules and kernels too: they fit by their times
        shutil.copy2(ROOT / "pyproject.toml", copy)
        (copy / ".cache").symlink_to(ROOT / ".cache")
        (copy / "src" / "tidemark" / mutation.file).write_text(mutated(mutation, copy))
        return _tested(mutation, copy)


def _tested(mutation: Mutation, copy: Path) -> Outcome:
    """Run pytest; its output goes to a file, because servers may hold a pipe open after it has ended."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--quick", *mutation.tests]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src")}  # takes precedence over the editable installation
    log, begin, code = copy / "output.txt", time.monotonic(), None
    with log.open("w") as out:
        try:
            code = subprocess.run(
                command,
                cwd=copy,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=LIMIT_S,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            out.write(f"\ntime limit of {LIMIT_S:g} s reached\n")
    output = log.read_text(errors="replace")
    failed = _FAILED.search(output)
    return Outcome(code, time.monotonic() - begin, failed[1] if failed else None, output)


def report(mutation: Mutation, outcome: Outcome) -> None:
    """Print one line, and the end of pytest's output where no test failed."""
    verdict = "noticed    " if outcome.noticed else "NOT NOTICED"
    shown = outcome.failed if outcome.noticed else f"pytest exit code {outcome.code}"
    _print(f"{verdict} {mutation.name} ({outcome.seconds:.1f} s): {shown}")
    if not outcome.noticed:
        _print("\n".join(f"    {line}" for line in outcome.output.splitlines()[-TAIL_LINES:]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all mutations, or those whose names contain one of the given texts; 1 if one is not noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="run the mutations whose names contain this text")
    parser.add_argument("--list", action="store_true", help="print the mutations and their tests")
    options = parser.parse_args(arguments)
    chosen = [each for each in MUTATIONS if not options.names or any(name in each.name for name in options.names)]
    if not chosen:
        parser.error(f"no mutation has a name with {' or '.join(options.names)}")
    if options.list:
        for mutation in chosen:
            _print(f"{mutation.name}: {shlex.join(mutation.tests)}")
        return 0
    for mutation in chosen:
        mutated(mutation, ROOT)  # an outdated list fails at once, not after minutes
    noticed = 0
    for mutation in chosen:
        outcome = outcome_of(mutation)
        report(mutation, outcome)
        noticed += outcome.noticed
    _print(json.dumps({"bench": "mutations", "figures": {"mutations": len(chosen), "noticed": noticed}}))
    return 0 if noticed == len(chosen) else 1


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
