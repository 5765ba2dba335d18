"""Which rows may have changed: the rule is PostgreSQL's arithmetic, and no row that became visible escapes it."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from psycopg import sql

from harness.database import Database
from tests.conftest import NEWEST
from tidemark.clock import Snapshot, Xid8
from tidemark.pipeline.poll.horizon import Horizon

pytestmark = pytest.mark.quick

WRAP = 1 << 32
HORIZONS, WORLDS = 1500, 400


@NEWEST
def test_a_server_and_we_hold_the_same_rows(db: Database) -> None:
    chance = random.Random(9)  # noqa: S311 - repeatable
    db.run("create table t (id int primary key)")
    with db.connect() as session:
        for n in range(60):
            inserts = (f"savepoint s; insert into t values ({n * 10 + i})" for i in range(chance.randint(1, 5)))
            session.execute(f"begin; {'; '.join(inserts)}; {chance.choice(['commit', 'commit', 'rollback'])}".encode())
    db.admin("vacuum freeze t")
    raw = sorted({xmin for (xmin,) in db.run("select xmin::text::bigint from t")})
    assert len(raw) > 60
    some = 0
    with db.session() as ours, ours.transaction():
        for _ in range(HORIZONS):
            horizon = _horizon(chance, raw)
            query = sql.SQL("select distinct xmin::text::bigint from public.t where {}").format(horizon.condition())
            found = {xmin for (xmin,) in ours.connection.execute(query)}
            assert found == {xmin for xmin in raw if horizon.holds(xmin)}, horizon
            some += 0 < len(found) < len(raw)
    assert some > HORIZONS / 4, "the horizons tell rows apart"


def _horizon(chance: random.Random, raw: list[int]) -> Horizon:
    """Near the rows, near the wrap, or anywhere; and ends near a row, a wrap or more later, or anywhere."""
    near = chance.choice(raw) + chance.randint(-3, 3)
    begin = chance.choice([near, WRAP - chance.randint(1, 2000), chance.randrange(3, WRAP), near])
    begin += chance.randrange(5) * WRAP
    end = (chance.choice(raw) + chance.randint(-3, 3) - begin) % WRAP
    span = chance.choice([end, 0, 1, WRAP - 1, WRAP - chance.randint(1, 2000), chance.randrange(WRAP), end])
    return Horizon(Xid8(begin), span)


@dataclass
class World:
    """Transactions with subtransactions, some running, some ended; ids are given in the order in which they begin."""

    chance: random.Random
    next: int
    running: dict[int, list[int]] = field(default_factory=dict)
    committed: set[int] = field(default_factory=set)
    ended: int = 0

    def __post_init__(self) -> None:
        self.ended = self.next - 1

    def _id(self) -> int:
        given, self.next = self.next, self.next + 1
        if self.next % WRAP < 3:
            self.next += 3 - self.next % WRAP
        return given

    def go_on(self) -> None:
        """Something happens."""
        done = self.chance.choice("bbsssce")
        if done == "b" or not self.running:
            top = self._id()
            self.running[top] = [top]
            return
        top = self.chance.choice(list(self.running))
        if done == "s":
            self.running[top].append(self._id())
            return
        ids = self.running.pop(top)
        self.ended = max(self.ended, *ids)
        if done == "c":
            self.committed.update(ids)

    def look(self) -> Snapshot:
        """A snapshot has the ids of running transactions, and not those of their subtransactions."""
        xmax = self.ended + 1
        running = sorted(top for top in self.running if top < xmax)
        return Snapshot(Xid8(min([*running, xmax])), Xid8(xmax), tuple(map(Xid8, running)))


@pytest.mark.parametrize("first", [700, WRAP - 60, 3 * WRAP - 60, (1 << 31) - 60], ids=hex)
def test_whatever_became_visible_is_held(first: int) -> None:
    lost_by_xmax = lost_by_visibility = 0
    for seed in range(WORLDS):
        chance = random.Random(seed)  # noqa: S311 - repeatable
        world = World(chance, first)
        for _ in range(chance.randint(1, 60)):
            world.go_on()
        earlier, seen = world.look(), set(world.committed)
        for _ in range(chance.randint(0, 60)):
            world.go_on()
        later = world.look()
        horizon = Horizon.between(earlier, later)
        assert horizon is not None
        for xid in world.committed - seen:
            assert horizon.holds(xid % WRAP), (seed, xid, earlier, later)
            lost_by_xmax += xid < earlier.xmax.value
            lost_by_visibility += earlier.sees(Xid8(xid))
    assert lost_by_xmax > 0, "a horizon that began at the earlier xmax would lose rows"
    assert lost_by_visibility > 0, "so would one that asked whether an id was visible, which may be a subtransaction's"


def test_a_span_of_every_id_there_is_holds_nothing_back() -> None:
    one = Snapshot.parse("100:100:")
    assert Horizon.between(one, Snapshot.parse(f"{WRAP + 99}:{WRAP + 99}:")) == Horizon(Xid8(100), WRAP - 1)
    assert Horizon.between(one, Snapshot.parse(f"{WRAP + 100}:{WRAP + 100}:")) is None
    assert Horizon.between(one, Snapshot.parse(f"50:{7 * WRAP}:50")) is None
    nothing = Horizon.between(Snapshot.parse("500:500:"), one)
    assert nothing is not None
    assert not any(nothing.holds(xmin) for xmin in (99, 100, 499, 500, WRAP - 1))
