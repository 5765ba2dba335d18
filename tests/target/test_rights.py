"""What a target lacks is probed, named with the statement that grants it, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.database import MIRROR, OWNER, Database, create_database
from harness.pgbouncer import find_pgbouncer, pooled
from harness.postgres import Server
from harness.standby import standby_of
from tests.conftest import Start
from tests.target.pairs import Pair
from tidemark import errors
from tidemark.postgres.doctor import Check, Status
from tidemark.postgres.dsn import Dsn
from tidemark.postgres.identity import locate
from tidemark.postgres.names import MirrorNames
from tidemark.postgres.requirements import Mode
from tidemark.postgres.session import Session
from tidemark.postgres.sqlstate import Endpoint
from tidemark.schema.selection import Pattern, Selection
from tidemark.target.follow import CloneFollower, FollowOptions
from tidemark.target.options import CloneOptions
from tidemark.target.probes import read_target_state
from tidemark.target.rights import examine_target, not_cloned, require_target, target_requirements

pytestmark = pytest.mark.quick

ADVICE = {"session_replication_role", "replication origin"}


@pytest.fixture
def pair(db: Database, server: Server) -> Iterator[Pair]:
    """A source with one table and a sequence that the mirror role may read."""
    db.run("create table t (id serial primary key)", f"grant select on all sequences in schema public to {MIRROR}")
    target = create_database(server)
    yield Pair(db, target)
    target.drop()


def checks_of(pair: Pair, target: Dsn | None = None, selection: Selection | None = None) -> dict[str, Check]:
    """The checks for a role that owns the target's database and has no other rights."""
    dsn = target or pair.target.dsn(OWNER)
    checks = examine_target(pair.source.dsn(), dsn, selection or Selection()).checks
    assert all(check.requirement.consequence and check.fix for check in checks if check.status is not Status.PASS)
    return {check.requirement.name: check for check in checks}


def unmet(checks: dict[str, Check]) -> dict[str, Status]:
    return {name: check.status for name, check in checks.items() if check.status is not Status.PASS}


def fix(database: Database, check: Check) -> None:
    database.admin(*(each.statement for each in check.requirement.fixes))


def required(pair: Pair, target: Dsn | None = None) -> None:
    with pair.source.session() as session:
        dsn = target or pair.target.dsn(OWNER)
        require_target(read_target_state(session, pair.source.dsn(), dsn, Selection()))


def test_the_owner_of_a_database_is_enough(pair: Pair) -> None:
    everything = "select (select count(*) from pg_class), (select count(*) from pg_namespace)"
    before = pair.target.admin(everything)
    assert unmet(checks_of(pair)) == dict.fromkeys(ADVICE, Status.WARN)
    required(pair)
    assert pair.target.admin(everything) == before, "nothing is left behind"
    assert pair.target.admin("select count(*) from pg_replication_origin") == [(0,)]


def test_more_rights_are_granted_by_the_statements_that_are_named(pair: Pair) -> None:
    checks = checks_of(pair)
    if pair.target.server.install.major < 15:
        assert "superuser" in checks["session_replication_role"].fix
        return
    for name in ADVICE:
        fix(pair.target, checks[name])
    try:
        assert unmet(checks_of(pair)) == {}
    finally:
        pair.target.admin(f"revoke set on parameter session_replication_role from {OWNER}")


def test_a_role_that_may_create_nothing(pair: Pair) -> None:
    checks = checks_of(pair, pair.target.dsn(MIRROR))
    assert {name for name, status in unmet(checks).items() if status is Status.FAIL} == {
        "CREATE on the database",
        "CREATE on schemas",
    }
    with pytest.raises(errors.NotPermitted, match=f"role {MIRROR} cannot create schemas") as caught:
        required(pair, pair.target.dsn(MIRROR))
    assert caught.value.hint == f'Run `grant create on database "{pair.target.name}" to "{MIRROR}"`.'
    for name in ("CREATE on the database", "CREATE on schemas"):
        fix(pair.target, checks[name])
    assert unmet(checks_of(pair, pair.target.dsn(MIRROR))).keys() == ADVICE | {"owners"}


def test_owners_and_rows_of_extensions_that_are_not_cloned_are_named_with_their_number(pair: Pair) -> None:
    """The table of the catalog row stands for one that an extension has created."""
    pair.source.run('create table "Of ext" (id int)', 'insert into "Of ext" select generate_series(1, 3)')
    pair.source.admin(
        "insert into pg_depend select 'pg_class'::regclass, oid, 0, 'pg_extension'::regclass,"
        " (select oid from pg_extension where extname = 'plpgsql'), 0, 'e' from pg_class where relname = 'Of ext'"
    )
    checks = checks_of(pair, pair.target.dsn(MIRROR))
    assert checks["rows of extensions"].status is Status.WARN
    assert checks["rows of extensions"].found == "tables of extensions have rows: public.Of ext (3 rows)"
    assert checks["owners"].status is Status.WARN
    assert checks["owners"].found == f"role {MIRROR} cannot give tables to {OWNER} (1 table)"
    with pair.source.session() as session:
        state = read_target_state(session, pair.source.dsn(), pair.target.dsn(OWNER), Selection())
    (named,) = not_cloned(state)
    assert named.startswith("tables of extensions have rows: public.Of ext (3 rows); these rows are not cloned")
    try:
        fix(pair.target, checks["owners"])
        assert checks_of(pair, pair.target.dsn(MIRROR))["owners"].status is Status.PASS
    finally:
        pair.target.admin(f"revoke {OWNER} from {MIRROR}")


def test_tables_that_exist_and_may_not_be_written(pair: Pair) -> None:
    pair.source.run("create table u (a int)")
    pair.target.admin("create table t (id int)", "create table u (a int)", "create table v (a int)")
    pair.target.admin(f"grant select, insert on t to {OWNER}", "alter table u enable row level security")
    pair.target.admin(f"grant select, insert, update, delete, truncate on u to {OWNER}")
    checks = examine_target(pair.source.dsn(), pair.target.dsn(OWNER), Selection()).checks
    found = [check for check in checks if check.requirement.name == "existing tables"]
    assert [check.found for check in found] == [
        f"role {OWNER} may not write public.t",
        f"row security policies restrict role {OWNER} in public.u",
    ]
    assert found[0].fix == f'grant update, delete, truncate on table "public"."t" to "{OWNER}";'
    only = examine_target(pair.source.dsn(), pair.target.dsn(OWNER), Selection(leave=(Pattern("u"),))).checks
    assert [check.found for check in only if check.requirement.name == "existing tables"] == [found[0].found]
    fix(pair.target, found[0])
    pair.target.admin("alter table u disable row level security")
    assert checks_of(pair)["existing tables"].found == f"role {OWNER} may write all 2 of the tables that exist"


def test_a_target_that_is_the_source_or_its_standby(pair: Pair) -> None:
    checks = checks_of(pair, pair.source.dsn(OWNER))
    assert unmet(checks) == {"another database": Status.FAIL}
    with pytest.raises(errors.UnsupportedServer, match="is the source itself"):
        required(pair, pair.source.dsn(OWNER))


@pytest.mark.full
def test_a_standby_of_another_server_and_one_of_the_source(start: Start) -> None:
    source, other = create_database(start()), create_database(start(own_identity=True))
    source.run("create table t (a int)")
    with standby_of(source) as standby:
        assert unmet(checks_of(Pair(source, source), standby.dsn(OWNER))) == {
            "another database": Status.FAIL,
            "writable": Status.FAIL,
        }
    with standby_of(other) as standby:
        checks = checks_of(Pair(source, other), standby.dsn(OWNER))
        assert (checks["writable"].status, checks["writable"].found) == (Status.FAIL, "the server is a standby")


@pytest.mark.parametrize("where", ["database {}", "role app in database {}", "role app"])
def test_a_database_that_is_read_only_by_a_setting(pair: Pair, where: str) -> None:
    place = where.format(pair.target.name)
    pair.target.admin(f"alter {place} set default_transaction_read_only = on")
    try:
        check = checks_of(pair)["writable"]
        assert check.status is Status.FAIL
        assert check.fix.splitlines() == [
            "set default_transaction_read_only = off;",
            f"alter {place} reset default_transaction_read_only;",
        ]
        fix(pair.target, check)
        assert checks_of(pair)["writable"].status is Status.PASS
    finally:
        pair.target.server.sql(f"alter {place} reset default_transaction_read_only")


@pytest.mark.parametrize(("source", "target", "warns"), [
    ("LATIN1", "UTF8", False), ("UTF8", "LATIN1", True), ("SQL_ASCII", "UTF8", True), ("LATIN1", "LATIN1", False),
])  # fmt: skip
def test_an_encoding_that_cannot_hold_the_texts(server: Server, source: str, target: str, warns: bool) -> None:
    pair = Pair(create_database(server, source), create_database(server, target))
    try:
        pair.source.run("create table t (a text)")
        check = checks_of(pair)["encoding"]
        assert (check.status is Status.WARN) is warns
        assert not warns or "the clone stops at the first text that" in check.requirement.consequence
    finally:
        pair.source.drop()
        pair.target.drop()


def test_extensions_are_tried_and_named(pair: Pair) -> None:
    """A trusted extension can be created by the owner of the database; others need a superuser."""
    offered = (
        "select name, trusted from pg_available_extension_versions where name in ('vector', 'pgcrypto', 'pageinspect')"
    )
    extensions = dict(pair.target.admin(offered))
    pair.source.admin("create schema more", *(f"create extension {name} schema more" for name in extensions))
    checks = examine_target(pair.source.dsn(), pair.target.dsn(OWNER), Selection()).checks
    found = {check.found: check for check in checks if check.requirement.name == "extensions"}
    refused = [name for name, trusted in extensions.items() if not trusted]
    assert len(found) == max(1, len(refused))
    for name, check in zip(sorted(refused), found.values(), strict=False):
        assert check.found.startswith(f"extension {name} cannot be created: probing the target: permission denied")
        create = f'create extension "{name}" with schema "more";'
        assert check.fix.splitlines() == ['create schema if not exists "more";', create]
        fix(pair.target, check)
    assert checks_of(pair)["extensions"].found == f"all {len(extensions)} of the source exist or can be created"
    existing = pair.target.admin("select extname::text from pg_extension where extname <> 'plpgsql' order by extname")
    assert existing == [(name,) for name in sorted(refused)], "probes leave nothing behind"


def test_an_extension_that_the_server_does_not_have(pair: Pair) -> None:
    """The catalog row stands for an extension whose files are on the server of the source only."""
    pair.source.admin(
        "insert into pg_extension select 99999, 'elsewhere', extowner, extnamespace, true, '1.0', null, null"
        " from pg_extension where extname = 'plpgsql'"
    )
    check = checks_of(pair)["extensions"]
    assert (check.status, check.found) == (Status.FAIL, "extension elsewhere 1.0 is not installed on the server")


def test_sequences_that_may_not_be_read_at_the_source(pair: Pair) -> None:
    pair.source.run(f"revoke all on sequence t_id_seq from {MIRROR}")
    check = checks_of(pair)["sequences of the source"]
    assert (check.status, check.fix) == (
        Status.FAIL,
        f'grant select on sequence "public"."t_id_seq" to "{MIRROR}";',
    )
    fix(pair.source, check)
    assert checks_of(pair)["sequences of the source"].status is Status.PASS


def test_versions_that_are_too_old_or_older_than_the_source(pair: Pair) -> None:
    with pair.source.session() as session:
        state = read_target_state(session, pair.source.dsn(), pair.target.dsn(OWNER), Selection())
    old = replace(state, version_num=130011, version="13.11")
    assert [(each.name, each.holds) for each in target_requirements(old) if not each.holds] == [("version", False)]
    with pytest.raises(errors.UnsupportedServer, match=r"PostgreSQL 13\.11; Tidemark supports version 14 and later"):
        require_target(old)
    older = replace(state, needs=replace(state.needs, major=state.major + 1))
    assert "version" in {each.name for each in target_requirements(older) if not each.holds}
    require_target(older)


@pytest.mark.skipif(find_pgbouncer() is None, reason="no PgBouncer here and none to be unpacked")
def test_a_pooler_before_the_target(pair: Pair) -> None:
    with pooled(pair.target) as through:
        check = checks_of(pair, Dsn(through))["direct connection"]
        assert check.status is Status.FAIL
        with pytest.raises(errors.UnsupportedServer, match="connection pooler"):
            required(pair, Dsn(through))


@pytest.mark.skipif(find_pgbouncer() is None, reason="no PgBouncer here and none to be unpacked")
def test_a_pooler_before_the_target_of_a_clone_that_was_begun(pair: Pair, tmp_path: Path) -> None:
    """A resumed run probes no rights."""
    with pooled(pair.target) as through, pair.source.session() as session:
        source = locate(session, pair.source.dsn(), may_replicate=False).identity
        options = CloneOptions(pair.source.dsn(), Dsn(through), MirrorNames("c"), tmp_path)
        with pytest.raises(errors.UnsupportedServer, match="behind a transaction pooler"):
            CloneFollower.open(FollowOptions(source, Dsn(through), "c", tmp_path))
        with pytest.raises(errors.UnsupportedServer, match="behind a transaction pooler"), options.recorded():
            pass


@pytest.mark.parametrize("server_of", list(Endpoint))
def test_errors_name_the_server(pair: Pair, server_of: Endpoint) -> None:
    with Session.open(pair.target.dsn(), "test", server=server_of) as session:
        with pytest.raises(errors.ObjectMissing, match=f"reading from {server_of}: "):
            session.rows("select * from no_such_table")
        with pytest.raises(errors.NotPermitted) as caught:
            session.rows("select * from pg_catalog.pg_authid")
    assert ("tidemark doctor SOURCE TARGET" in caught.value.hint) is (server_of is Endpoint.TARGET)


def test_tables_without_a_replica_identity_are_required_to_have_one_unless_the_source_is_polled(pair: Pair) -> None:
    pair.source.run(
        "create table plain (a int)",
        "create table late (a int primary key deferrable)",
        "create table nothing (a int primary key)",
        "alter table nothing replica identity nothing",
        "create table whole (a int)",
        "alter table whole replica identity full",
        "create unlogged table unsent (a int)",
    )
    check = checks_of(pair)["replica identity at the source"]
    assert check.status is Status.FAIL
    assert check.found == "public.late, public.nothing, public.plain have no primary key or other replica identity"
    polled = examine_target(pair.source.dsn(), pair.target.dsn(OWNER), Selection(), Mode.POLL).checks
    assert [each.status for each in polled if each.requirement.name == check.requirement.name] == [Status.WARN]
    with pytest.raises(errors.UnsupportedServer, match="have no primary key or other replica identity") as caught:
        required(pair)
    assert "`tidemark doctor SOURCE TARGET`" in caught.value.hint
    for each in check.requirement.fixes[:-1]:
        pair.source.run(each.statement)
    with pytest.raises(errors.UnsupportedServer, match=r"public\.plain has no primary key") as caught:
        required(pair)
    assert caught.value.hint.startswith('Run `alter table "public"."plain" replica identity full`.')
    assert "`--exclude`, or use `--mode poll`" in caught.value.hint
    fix(pair.source, check)
    assert checks_of(pair)["replica identity at the source"].status is Status.PASS
