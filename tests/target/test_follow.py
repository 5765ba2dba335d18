"""A target that follows its source under load is equal to it at the end, whatever fails in between."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import replace

import pytest

from harness.database import OWNER
from harness.mirrored import eventually, receiving
from harness.proxy import Proxy
from harness.standby import standby_of, wait_for
from tests.conftest import NEWEST
from tests.target.following import Cloned
from tests.target.load import contents, writing
from tidemark.clock import Lsn
from tidemark.errors import LogTrimmed, SourceAltered, TargetInUse, TargetTableUnfit
from tidemark.log.reader import LogReader
from tidemark.log.segment import index_path, segment_path
from tidemark.postgres.dsn import Dsn
from tidemark.target import follow as following
from tidemark.target.follow import CloneFollower, follow

pytestmark = [pytest.mark.quick, NEWEST]


FORMATS = pytest.mark.parametrize("ranges", [True, False], ids=["text", "binary"])


@FORMATS
def test_a_target_follows_under_load(cloned: Cloned, short: bool) -> None:
    done = threading.Event()
    with receiving(cloned.mirror):
        thread = threading.Thread(target=follow, args=[cloned.options(), None, done.is_set])
        thread.start()
        with writing(cloned.source, 4):
            time.sleep(3 if short else 30)
        follow_to_the_end(cloned, thread, done)
    assert contents(cloned.target) == contents(cloned.source)


def follow_to_the_end(cloned: Cloned, thread: threading.Thread, done: threading.Event) -> None:
    """End the thread that follows, and follow up to the present."""
    done.set()
    thread.join()
    follow(cloned.options(), cloned.position(), lambda: False)


@pytest.mark.full
@FORMATS
def test_lost_connections_lose_nothing(cloned: Cloned, short: bool) -> None:
    proxy = Proxy(cloned.target.server.port)
    direct = cloned.target.dsn(OWNER).reveal()
    through = Dsn(direct.replace(f"port={cloned.target.server.port}", f"port={proxy.port}"))
    done = threading.Event()
    with receiving(cloned.mirror):
        thread = threading.Thread(target=follow, args=[cloned.options(through), None, done.is_set])
        thread.start()
        with writing(cloned.source, 2):
            for _ in range(10 if short else 100):
                time.sleep(0.3)
                proxy.cut()
        follow_to_the_end(cloned, thread, done)
    proxy.close()
    assert contents(cloned.target) == contents(cloned.source)


def test_a_target_that_follows_an_idle_source_commits_nothing_at_either_server(
    cloned: Cloned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does it for a transaction that changes none of its tables: the progress is recorded once in a while."""
    monkeypatch.setattr(following, "REPORT_S", 3600.0)
    progress = "select xmin::text, applied_lsn::text from tidemark.clones"
    cloned.source.run("insert into keyed values (1, 'a')")
    with receiving(cloned.mirror), CloneFollower.open(cloned.options()) as now:
        eventually(lambda: (now.step(), cloned.target.run("select from keyed"))[1])
        before, emitted = cloned.target.run(progress), nudges(cloned)
        for _ in range(3):
            now.wait()
            now.step()
        position, *_ = cloned.source.admin("select pg_logical_emit_message(true, 'other', '')::text")[0]
        eventually(lambda: (now.step(), now.applied_lsn >= Lsn.parse(position))[1])
        assert nudges(cloned) == emitted
        assert cloned.target.run(progress) == before
        now.settle()
        assert cloned.target.run(progress) != before
        cloned.source.run("truncate keyed")
        eventually(lambda: (now.step(), not cloned.target.run("select from keyed"))[1])


def nudges(cloned: Cloned) -> int:
    return sum(message[10:19] == b"tidemark\0" for each in cloned.mirror.by_sql() for message in each.messages)


@pytest.mark.full
def test_stages_do_not_keep_the_target_from_reusing_transaction_ids(
    cloned: Cloned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autovacuum skips temporary tables."""
    monkeypatch.setattr(following, "REPORT_S", 0.0)
    cloned.source.run("insert into keyed values (1, 'a')")
    with receiving(cloned.mirror), CloneFollower.open(cloned.options()) as now:
        eventually(lambda: (now.step(), cloned.target.run("select from keyed"))[1])
        cloned.target.admin("do $$ begin for i in 1..30 loop perform txid_current(); commit; end loop; end $$")
        assert old_stages(cloned) > 0
        monkeypatch.setattr(following, "STAGES_S", 0.0)
        now.step()
        assert old_stages(cloned) == 0
        cloned.source.run("update keyed set v = 'b'")
        eventually(lambda: (now.step(), cloned.target.run("select v from keyed") == [("b",)])[1])


def old_stages(cloned: Cloned) -> int:
    """How many stages need transaction IDs of some time ago, although all that can be frozen is frozen."""
    cloned.target.admin("vacuum freeze")
    ((count,),) = cloned.target.admin(
        "select count(*) from pg_class where relname like 'tidemark\\_stage%' and age(relfrozenxid) > 30"
    )
    assert isinstance(count, int)
    return count


def test_a_second_writer_is_refused(cloned: Cloned) -> None:
    with CloneFollower.open(cloned.options()), pytest.raises(TargetInUse, match="another process writes clone c"):
        CloneFollower.open(cloned.options())


def test_an_altered_table_stops_it(cloned: Cloned) -> None:
    cloned.source.run("insert into keyed values (1)", "alter table keyed add x int", "insert into keyed values (2)")
    with receiving(cloned.mirror):
        with pytest.raises(SourceAltered, match=r"table public.keyed was altered"):
            follow(cloned.options(), cloned.position(), lambda: False)
    assert cloned.target.run("select count(*) from keyed") == [(0,)]


ACTING = {
    "trigger": (
        "create function later() returns trigger language plpgsql as 'begin new.n := 0; return new; end'",
        "create trigger later before update on keyed for each row execute function later()",
    ),
    "rule": ("create rule more as on update to keyed do also insert into only_key values (old.id)",),
    "foreign key": ("alter table only_key add foreign key (id) references keyed on delete cascade",),
}


@pytest.mark.parametrize("kind", ACTING)
def test_what_acts_on_rows_of_the_target_is_refused_also_while_it_follows(cloned: Cloned, kind: str) -> None:
    """An UPDATE trigger stores other values, a rule adds rows, and a cascade deletes the children of a moved row."""
    with CloneFollower.open(cloned.options()) as now:
        cloned.target.run(*ACTING[kind])
        with pytest.raises(TargetTableUnfit, match=f"^{kind} "):
            now.check_target()
    cloned.source.run("insert into keyed values (1, 'a', 1)")
    with receiving(cloned.mirror):
        with pytest.raises(TargetTableUnfit, match=f"^{kind} ") as raised:
            follow(cloned.options(), cloned.position(), lambda: False)
        assert "when the clone is complete" in raised.value.hint
        (fix,) = re.findall("`(.*)`", raised.value.hint)
        cloned.target.run(fix)
        follow(cloned.options(), cloned.position(), lambda: False)
    assert contents(cloned.target) == contents(cloned.source)


def test_what_the_log_no_longer_has_is_durable_at_the_target(cloned: Cloned) -> None:
    cloned.target.admin(f"alter role {OWNER} in database {cloned.target.name} set synchronous_commit = off")
    with CloneFollower.open(cloned.options()) as following:
        assert following._session.row("select current_setting('synchronous_commit')") == ("local",)


@pytest.mark.full
@pytest.mark.parametrize("keep_s", [3600.0, 0.0], ids=["kept", "removed"])
def test_a_standby_that_is_promoted_while_it_is_behind_is_caught_up(
    cloned: Cloned, monkeypatch: pytest.MonkeyPatch, keep_s: float
) -> None:
    """If the log no longer has what the standby lacks, that is said."""
    monkeypatch.setattr(following, "KEEP_S", keep_s)
    monkeypatch.setattr(following, "REPORT_S", 0.0)
    folder = cloned.mirror.options.folder
    cloned.source.run("insert into large values (1, 'before', 1)")
    with (
        receiving(cloned.mirror, replace(cloned.mirror.options, segment_bytes=1 << 16)),
        standby_of(cloned.target) as standby,
    ):
        follow(cloned.options(), cloned.position(), lambda: False)
        wait_for(standby, cloned.target)
        standby.admin("alter system set primary_conninfo = ''", "select pg_reload_conf()")
        eventually(lambda: not standby.admin("select from pg_stat_wal_receiver"))
        for number in range(2, 40):
            cloned.source.run(f"insert into large values ({number}, repeat('x', 10000), {number})")
            follow(cloned.options(), cloned.position(), lambda: False)
        with CloneFollower.open(cloned.options()) as again:
            eventually(lambda: not again.step() and (keep_s > 0 or not segment_path(folder, 1).exists()))
        assert segment_path(folder, 1).exists() is (keep_s > 0)
        standby.server.promote()
        assert standby.run("select count(*) from large") == [(1,)]
        options = cloned.options(standby.dsn(OWNER))
        if keep_s > 0:
            follow(options, cloned.position(), lambda: False)
            assert contents(standby) == contents(cloned.source)
        else:
            with pytest.raises(LogTrimmed, match=r"the target has lost changes.*promoted while it was behind"):
                follow(options, cloned.position(), lambda: False)


@pytest.mark.full
def test_the_index_of_what_was_applied_is_removed_and_a_target_that_needs_it_is_refused(
    cloned: Cloned, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KEEP_S", "REPORT_S", "FORGET_S"):
        monkeypatch.setattr(following, name, 0.0)
    folder = cloned.mirror.options.folder
    with receiving(cloned.mirror, replace(cloned.mirror.options, segment_bytes=1 << 16)):
        cloned.source.run("insert into large values (1, 'first', 1)")
        first = cloned.position()
        follow(cloned.options(), first, lambda: False)
        for number in range(2, 20):
            cloned.source.run(f"insert into large values ({number}, repeat('x', 10000), {number})")
        follow(cloned.options(), cloned.position(), lambda: False)
        with CloneFollower.open(cloned.options()) as now:
            eventually(lambda: (now.step(), not index_path(folder, 1).exists())[1])
        assert contents(cloned.target) == contents(cloned.source)
        assert segment_path(folder, LogReader(folder).last_commits()[-1].number).exists()
        cloned.target.run("delete from large where id > 1", f"update tidemark.clones set applied_lsn = '{first}'")
        cloned.source.run("insert into large values (20, 'last', 20)")
        with pytest.raises(LogTrimmed, match="the target has lost changes"):
            follow(cloned.options(), cloned.position(), lambda: False)
    assert cloned.target.run("select id from large") == [(1,)]


@pytest.mark.full
def test_the_log_is_kept_for_a_time_and_up_to_a_size(cloned: Cloned, monkeypatch: pytest.MonkeyPatch) -> None:
    with CloneFollower.open(cloned.options()) as now:
        clock = [1000.0]
        monkeypatch.setattr(time, "monotonic", lambda: clock[0])
        now._reports.clear()
        now._reports.append((clock[0], Lsn.ZERO))
        kept = []
        for minute in range(130):
            clock[0] += 60
            now._recorded = Lsn((minute + 1) << 20)
            kept.append(now._kept().value >> 20)
        assert kept == [0] * 60 + list(range(1, 71))
        now._recorded = Lsn(5 << 30)
        assert now._kept() == Lsn(4 << 30)
