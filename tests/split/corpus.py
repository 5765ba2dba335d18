"""Statements with traps, and the tables that they read."""

from __future__ import annotations

TABLES = (
    """create table items (id int primary key, g char(5), v varchar(20), t text, n numeric(10,2), m numeric(12,4),
       u numeric, i2 int2, b int8, d date, ts timestamp(3), tz timestamptz, f float8, ok bool)""",
    "create table parts (id int primary key, item int, q numeric(15,2), name text)",
    "create table empty (id int, n numeric(8,3))",
)
ROWS = (
    """insert into items select i, (array['a', 'b  ', 'c', null])[1 + i % 4], 'v' || i % 7,
       (array['x', 'x ', '', null])[1 + i % 4], (i % 50) / 3.0, i / 7.0, i / 11.0, i % 100, i * 1000000000::int8,
       date '2020-01-01' + i % 400, timestamp '2020-01-01' + i * interval '1 hour 1.234 s',
       timestamptz '2020-01-01 00:00+00' + i * interval '1 hour', i / 3.0, i % 3 = 0 from generate_series(1, 300) i""",
    "insert into parts select i, nullif(i % 200, 0), i * 1.25, 'name ' || i % 5 from generate_series(1, 400) i",
)

# Answered by the mirror, each for a rule that a translation would get wrong.
ANSWERED = (
    "select count(*) from items",
    """select g, sum(n), avg(n), count(distinct v), max(d) from items where d < date '2020-12-01' - interval '10 day'
       and v <> 'v3' group by g order by 1 nulls first""",
    "select g, sum(n * (1 - m)) as x, avg(id), avg(b), sum(b) from items group by g having count(*) > 3 order by 2",
    """select i.g, count(*), sum(q) from items i join parts p on p.item = i.id where p.name like 'name %'
       group by i.g order by 1""",
    "select i.id, p.id from items i left join parts p on p.item = i.id and p.q > 100 where i.id < 20 order by 1, 2",
    "select count(*) from items where g = 'b'",  # char(n): blanks do not count
    "select count(*) from items where g = 'b '::text",  # but here they count on one side
    "select count(*) from items where t = 'x'",
    "select count(*) from items where v not like 'v1%'",  # a negation that a field has
    "select extract(year from d) as y, count(*) from items group by 1 order by y",
    "select sum(case when ok then n else 0 end), max(n), count(n) from items where false",
    "select sum(case when id = 1 then n else 0 end), sum(case when id < 0 then n else 0 end) from items",  # scales
    "select coalesce(sum(n), 0), sum(coalesce(n, 0)) from items where g = 'a'",
    """select v, count(*) from items where exists (select 1 from parts p where p.item = items.id)
       and id not in (select item from parts where item is not null and item < 40) group by v order by 1""",
    "select count(*) from items where id not in (select item from parts)",  # NULL in the subquery: no row
    "select v, count(*) from items where n > (select avg(n) from items) group by v order by v",
    "select count(*) from items where n > (select 0.5 * avg(q) from parts p where p.item = items.id)",
    "select count(*) from items where 0 = (select count(*) from parts p where p.item = items.id)",  # the count bug
    "select g, to_char(sum(n), '999.99'), rank() over (order by sum(n) desc) from items group by g order by 1",
    "with x as (select g, count(*) as c from items group by g) select c, count(*) from x group by c order by 1",
    "select upper(v), id from items where upper(v) = 'V2' and id < 100 order by 2",
    "select count(f), count(u), count(tz) from items where tz > '2020-01-05 00:00+00'",
    "select date_trunc('month', d), count(*), avg(id) from items group by 1 order by 1",
    "select id, d - 3, n / 3, u, ts, t, g from items where id in (1, 2, 3) order by id limit 2",
    "select count(*), sum(x) from (select n as x from items union all select q from parts) z",
    "select g, v, sum(n), count(*), avg(n), grouping(g, v) from items group by rollup (g, v) order by 1, 2, 6, 3",
    "select i2 + id, id / 7, id % 7, -id / 2 from items where id / 7 = 3 and -id % 7 < 0 order by 1",
    "select sum(n), sum(n) filter (where id > 1), avg(n) from empty",
    "select ok, ok is true, ok is not distinct from null from items where (ok is not true) is true order by id limit 5",
    "select max(ts), min(d) - 7 from items where ts > timestamp '2020-01-02 03:04:05.678'",
    "select * from items where id < 5 order by id",
    "select current_setting('server_version_num'), count(*) from items where v <> current_setting('application_name')",
    "select count(*), 'up to now' from items where t <> 'nowhere'",
)
# Never answered by the mirror: a reason is given instead.
REFUSED = (
    ("select ctid from items", "ctid"),
    ("select random(), id from items", "volatile"),
    ("select string_agg(v, ',') from items", "string_agg"),
    ("select count(*) from pg_class", "a table of the system"),
    ("select * from items for update", "LockingClause"),
    ("select current_setting('transaction_isolation'), count(*) from items", "current_setting"),
    ("select pg_catalog.current_setting('Transaction_Read_Only', true), id from items", "current_setting"),
    ("select count(*) from items where v = current_setting(t)", "current_setting"),
    ("select count(*) from items where b = txid_current_if_assigned()", "txid_current_if_assigned"),
    ("select id, pg_current_snapshot() from items", "pg_current_snapshot"),
    ("select count(*) from items where d < 'today'", "a literal that may be a moment"),
    ("select count(*) from items where ts < ' NOW '", "a literal that may be a moment"),
    ("select tz > timestamptz 'tomorrow 12:00', id from items", "a literal that may be a moment"),
    ("select count(*) from items where ts > 'yesterday'::date", "a literal that may be a moment"),
)
