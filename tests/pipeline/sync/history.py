"""Tables of several kinds, and changes of them in turns, for mirrors whose history is compared later."""

from __future__ import annotations

from harness.database import Database

CREATE = (
    "create table t (id int primary key, v text)",
    "insert into t select i, md5(i::text) from generate_series(1, 500) i",
    "create table bag (n int)",
    "alter table bag replica identity full",
    "insert into bag select i % 5 from generate_series(1, 50) i",
    "create table root (id int primary key, v text) partition by range (id)",
    "create table leaf partition of root for values from (0) to (1000)",
    "insert into root select i, 'leaf' from generate_series(1, 20) i",
    "create table empty (id int primary key)",
)


def work(db: Database, turn: int) -> None:
    db.run(
        f"update t set v = 'turn {turn}' where id % 7 = {turn % 7}",
        f"delete from t where id = {turn + 1}",
        f"insert into bag values ({turn}), ({turn})",
        "delete from bag where ctid = (select ctid from bag where n = 2 limit 1)",
        f"insert into root values ({100 + turn}, 'turn {turn}')",
    )
