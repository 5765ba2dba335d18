"""A hostile schema is created at another server, in stages, by a role that owns its database and nothing more."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from tests.target.schema_pairs import PAIRS, Pair, pair_fixture
from tidemark.storage.disk import LocalDisk
from tidemark.target import schema
from tidemark.target.archive import open_archive, without_new
from tidemark.target.needs import missing_at_target
from tidemark.target.schema import CloneSchema
from tidemark.target.stages import CloneStage

pytestmark = pytest.mark.quick

pair = pair_fixture(*PAIRS)


@pytest.mark.parametrize("jobs", [1, 4])
def test_nothing_of_a_hostile_schema_is_missing(pair: Pair, tmp_path: Path, jobs: int) -> None:
    pair.fill()
    archive = pair.dump(tmp_path)
    with pair.target.session("app") as session:
        missing_at_target(session, archive).require()
    pair.restore(archive, CloneStage.DEFINITIONS, jobs=jobs)
    definitions = pair.target.run(
        "select count(*) from pg_index x join pg_class c on c.oid = x.indrelid where relnamespace = 'app'::regnamespace"
    )
    assert definitions == [(0,)]
    pair.restore(archive, CloneStage.KEYS, CloneStage.INDEXES, CloneStage.LAST, jobs=jobs)
    assert pair.statements(pair.target) == pair.expected()
    populated = "select oid::regclass::text from pg_class where relkind = 'm' and relispopulated order by 1"
    assert pair.target.run(populated) == pair.source.run(populated)


def test_what_the_newest_version_added_is_cloned(pair: Pair, tmp_path: Path) -> None:
    if min(pair.source.server.install.major, pair.target.server.install.major) < 18:
        pytest.skip("one of the servers does not have it")
    pair.source.run(
        "create table t (a int, b int generated always as (a * 2) virtual, constraint odd not null a no inherit)",
        "insert into t values (1)",
        "alter table t add c int",
        'alter table t add constraint "later" not null c not valid',
        "alter table t add constraint loose check (a > 100) not enforced",
        "create table ranges (a int4range, r tsrange, primary key (a, r without overlaps))",
        "create table refs (a int4range, r tsrange, foreign key (a, period r) references ranges (a, period r))",
    )
    pair.restore(pair.dump(tmp_path))
    assert pair.statements(pair.target) == pair.expected()


def test_every_stage_can_be_repeated_from_the_directory_of_the_archive(pair: Pair, tmp_path: Path) -> None:
    pair.fill()
    archive = pair.dump(tmp_path)
    assert open_archive(tmp_path) == archive
    for stage in CloneStage:
        pair.restore(archive, stage)
        pair.restore(open_archive(tmp_path), stage, jobs=2)
    assert pair.statements(pair.target) == pair.expected()


def test_what_is_new_in_a_later_dump_is_left_out_with_all_that_depends_on_it(pair: Pair, tmp_path: Path) -> None:
    pair.fill()
    earlier, same = pair.dump(tmp_path / "earlier"), pair.dump(tmp_path / "same")
    assert without_new(same, earlier) == same
    pair.source.run(
        "create table app.new (id int primary key references app.a)",
        "grant select on app.new to reader",
        "create trigger touched before update on app.a for each row execute function app.touch()",
        "alter table app.base add constraint refers foreign key (id) references app.a not valid",
    )
    later = pair.dump(tmp_path / "later")
    found = without_new(later, earlier)
    assert sorted(f"{each.kind} {each.rest}" for each in found.left_out) == [
        "ACL app TABLE new app",
        "CONSTRAINT app new new_pkey app",
        "FK CONSTRAINT app new new_id_fkey app",
        "TABLE app new app",
    ]
    added = {str(each) for each in found.entries} - {str(each) for each in earlier.entries}
    assert added == {"TRIGGER app a touched app", "FK CONSTRAINT app base refers app"}


class RecordingDisk(LocalDisk):
    """The real disk, and what was renamed and synced on it."""

    operations: ClassVar[list[str]] = []

    def replace(self, path: Path, target: Path) -> None:
        super().replace(path, target)
        self.operations.append(f"rename {path.name} {target.name}")

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.operations.append(f"sync {folder}")


def test_the_name_of_the_dump_is_durable_before_a_part_of_it_is_created(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone that continues after a power loss requires the dump of the part that the target has."""
    pair.source.run("create table t (a int primary key)")
    monkeypatch.setattr(schema, "LocalDisk", RecordingDisk)
    monkeypatch.setattr(RecordingDisk, "operations", [])
    cloned = CloneSchema(pair.from_dsn, pair.to_dsn, tmp_path, 1, pair.programs.pg_dump.parent, is_cloned=True)
    cloned.dump(None, None, begun=False)
    assert RecordingDisk.operations == ["rename schema.next schema", f"sync {tmp_path}"]
    cloned.create(CloneStage.DEFINITIONS)
    cloned.dump(None, None, begun=True)
    assert [path.name for path in tmp_path.iterdir()] == ["schema"]
    RecordingDisk.operations.clear()
    cloned.dump_last(None)
    assert RecordingDisk.operations == [f"sync {tmp_path}"]


def test_keys_and_indexes_are_created_table_by_table(pair: Pair, tmp_path: Path) -> None:
    pair.fill()
    archive = pair.dump(tmp_path)
    pair.restore(archive, CloneStage.DEFINITIONS)
    (parent,), (events,) = pair.source.run(
        "select 'app.parent'::regclass::oid::bigint union all select 'app.events_1'::regclass::oid::bigint"
    )
    for _ in range(2):
        pair.restore(archive, CloneStage.KEYS, CloneStage.INDEXES, only={events})
    with pytest.raises(ValueError, match="stage last cannot be limited"):
        pair.restore(archive, CloneStage.LAST, only={events})
    indexed = """select distinct c.relname from pg_index x join pg_class c on c.oid = x.indrelid
                  where c.relkind in ('r', 'p', 'm') and c.oid >= 16384 order by 1"""
    assert pair.target.run(indexed) == [("events_1",)]
    pair.restore(archive, CloneStage.KEYS, only={parent})
    assert pair.target.run(indexed) == [("events_1",), ("parent",)]
    pair.restore(archive, CloneStage.KEYS, CloneStage.INDEXES, CloneStage.LAST)
    assert pair.statements(pair.target) == pair.expected()


def test_a_role_without_privileges_reads_no_table_before_row_security_is_on(pair: Pair, tmp_path: Path) -> None:
    pair.fill()
    archive = pair.dump(tmp_path)
    pair.restore(archive, CloneStage.DEFINITIONS, CloneStage.KEYS, CloneStage.INDEXES)
    granted = """select has_table_privilege('reader', 'app.m1', 'select'),
                        has_function_privilege('reader', 'app.plus_one(int, numeric)', 'execute')"""
    assert pair.target.run(granted) == [(False, False)]
    pair.restore(archive, CloneStage.LAST)
    assert pair.target.run(granted) == [(True, False)]
