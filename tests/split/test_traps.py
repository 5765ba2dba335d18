"""Statements whose parts mean something else below than where they stand: each is refused, or has the same answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from harness.database import create_database
from harness.postgres import Server
from tests.conftest import installs_from
from tests.sql_parity.comparison import Statement, difference
from tests.sql_parity.lakes import source_session
from tests.sql_parity.openers import by_reference
from tests.sql_parity.routes import Route
from tidemark.engines.arrays import array_parameters
from tidemark.errors import EngineRefused
from tidemark.split import ir
from tidemark.split.plan import Output, PlanPart
from tidemark.split.types import SqlType

pytestmark = pytest.mark.quick
install = installs_from(0)

TABLES = (
    "create table iv (id int primary key, v interval, k int, note text)",
    "insert into iv values (1, '1 day', 1, 'a'), (2, null, 1, 'A'), (3, '2 days', 2, 'b'), (4, null, 2, 'B')",
    "create table iv2 (id2 int primary key, v interval, k int)",
    "insert into iv2 values (1, '1 day', 1), (2, '9 days', 1), (3, '9 days', 2)",
    "create table o (id int primary key, v int, k int)",
    "insert into o values (1, null, 1), (2, 5, 2), (3, null, 3)",
    "create table sales (id int primary key, amount int)",
    "insert into sales select i, i from generate_series(1, 3) i",
    "create table products (id int primary key, price numeric(9,4))",
    "insert into products values (1, 1), (2, 2), (3, 2.5), (4, null), (5, 7)",
    "create table f (id int primary key, x float8, n numeric, m numeric(9,2))",
    "insert into f values (1, 0.1, 1.0, 1), (2, 1e16, 1, 2), (3, -1e16, 1.00, 3), (4, 0.3, 2.50, 4), (5, -0.0, 2.5, 1)",
    "create table b (id int primary key, big int8, n int)",
    "insert into b values (1, 9000000000, 1), (2, 1, null), (3, -5, 3)",
    "create table p (id int primary key, price numeric(9,4))",
    "insert into p values (1, 1), (2, 2), (3, 2.5), (4, null)",
    "create table q (id int primary key, bal numeric(6,2))",
    "insert into q values (1, 1.83), (2, 1.84), (3, -1.83), (4, -1.84), (5, 2)",
    """create table words
       (id int primary key, t text, v varchar(5), c char(4), z text collate "C", d date, ts timestamp)""",
    """insert into words values (1, 'a', 'a ', 'a', 'a', '2020-01-01', '2020-01-01 12:00'), (2, 'a ', 'B', 'B', 'B',
       '2020-02-29', '2020-02-29 00:00'), (3, 'é%_', '', '', 'é', null, null), (4, null, null, null, null,
       '1999-12-31', '1999-12-31 23:59:59.999999')""",
    "create table odd (id int primary key, r float4, c char(3), s int2)",
    "insert into odd values (1, 1.1, 'a', 1), (2, 2.2, 'b', 32767), (3, null, null, -32768), (4, 2.5, 'b', 2)",
    'create table named (id int primary key, note text, code text collate "C")',
    "insert into named values (1, 'a', 'a'), (2, 'A', 'b'), (3, null, null)",
    "create table emp (id int primary key, v int)",
    "create table bin (id int primary key, b bytea, tz timestamptz)",
    "insert into bin values (1, 'abc', '2020-01-31 23:30+00')",
)
TRAPS = (
    # A column that is not read has its name: another one around it, or a result, is not meant.
    "select count(*) from o where exists (select 1 from iv where v is null)",
    "select count(*) from o where id in (select id from iv where v is not null)",
    "select count(*) from o where exists (select 1 from iv where iv.v is null)",
    "select 1 as v, count(*) from iv group by v",
    "select count(*) from iv natural join iv2",
    "select count(*) from iv join iv2 using (v)",
    "select id, (select max(id2) from iv2 where v is not null) from o",
    "select count(*) from (select id as ctid from o) d where exists (select 1 from iv where ctid is null)",
    "select 1 as xmin, count(*) from o group by xmin",
    # LIMIT chooses by the order of rows, unless ORDER BY leaves nothing open.
    "select sum(d.n) from (select k, count(*) as n from o group by k limit 1) d",
    "select sum(d.m) from (select k, max(id) as m, count(*) as n from iv group by k order by n limit 1) d",
    "select (select max(id) from iv group by k limit 1), count(*) from o",
    "with a as (select k, max(id) as m from iv group by k limit 1) select sum(m) from a",
    "select count(*) from o where id = (select id from iv order by k limit 1)",
    "select sum(d.id) from (select distinct on (k) k, id from iv order by k) d",
    "select sum(d.m) from ((select k, max(id) as m from iv group by k) union (select 9, 9) limit 1) d",
    "(select k from o group by k limit 1) intersect select 2",
    "select k from o group by k except (select k from iv group by k limit 1)",
    # A WITH inside of another.
    """with a as (select 1 as n), sales as (select * from products)
       select count(*) from (with a as (select * from sales) select * from a) x""",
    # Sums of floats, and representatives of equal values.
    "select sum(x) from f",
    "select avg(x), stddev(x) from f",
    "select sum(x::float4) from f",
    "select id, sum(x) over () from f",
    "select sum(sqrt(id)) from f",
    "select k, sum(sum(id)::float8 / 3) over () from o group by k",
    "select n, count(*) from f group by n",
    "select n, count(*) from f where x > 0 group by n order by 1",
    "select distinct n from f",
    "select min(n), max(n) from f",
    "select x, count(*) from f group by x",
    "select case when id = 1 then 1.0 else 1.00 end, count(*) from f group by 1",
    "select distinct m / 3 from f",
    "select sum(distinct n) from f",
    "select m from f union select n from f",
    "select id::numeric from f union select m from f",
    "select n from f intersect select m from f",
    # Functions of windows for which rows are equal in order.
    "select id, k, row_number() over (order by k) from o",
    "select id, lag(id) over (order by k desc) from iv",
    "select k, id, sum(id) over (order by k rows unbounded preceding) from iv",
    "select k, lag(count(*)) over w from iv group by k window w as (order by count(*))",
    "select note, first_value(note) over (order by count(*)) from iv group by note",
    # Numerics of scalar subqueries have digits that are not known yet.
    "select max((select avg(price) from p)) from q",
    "select count(*) from q where bal > -(select avg(price) from p)",
    "select count(*) from q where bal < abs((select avg(price) from p))",
    "select sum(d.a) from (select bal, (select avg(price) from p) as a from q) d",
    "select d.a, count(*) from (select bal, (select avg(price) from p) as a from q) d group by d.a",
    "select count(*) from q where nullif((select avg(price) from p), 0) > bal",
    # Functions that return sets remove rows.
    "select count(*) from q where exists (select generate_series(1, 0) from p)",
    "select count(*) from q where exists (select 1 from p order by generate_series(1, 0))",
    # The type of NULLIF is that of its left argument as the operator compares it.
    "select sum(nullif(n, 1.5)) from b",
    # A text with another collation.
    "select count(*) from named where note = (select max(code) from named)",
    # IN converts its list to the type on the left, `=` both sides to float8.
    "select count(*) from odd where r in (1.1, 2.2)",
    "select count(*) from odd where r not in (1.1, 2.5)",
    "select count(*) from odd where r = 1.1",
    "select count(*) from odd where r = any(array[1.1, 2.2])",
    # A literal beside a char is a char.
    "select count(*) from (select c from odd union all select 'b ') z where c = 'b'",
    "select length(c), c = 'b  ' from (select c from odd union all select 'b ' from o) z",
    "select coalesce(c, 'b ') = 'b', case when id = 1 then c else 'b ' end = 'b', count(*) from odd group by 1, 2",
    "select count(*) from odd where nullif(c, 'b ') is null",
    "select count(*) from odd where c in ('b ', 'a')",
    "select count(*) from odd where c || 'x' = 'bx' or c like 'b'",
    # Types that literals, parameters and columns have in other places.
    "select count(*) from odd where c in ('b '::text, 'a'::text)",
    "select count(*) from odd where r in (1, 2)",
    "select count(*) from odd where r between 1.1 and 2.2",
    "select count(*) from (select r from odd union all select 1.1) z where r = 1.1",
    "select count(*) from (select r from odd union all select m from f) z where r = 1.1",
    "select sum(s + s) from odd where s between 0 and 100",
    "select count(*) from odd a join odd b on a.c = b.c || ' '",
    "select count(*) from odd a where exists (select 1 from odd b where b.c = a.c and b.id <> a.id)",
    "select count(*) from odd where c in (select note from named)",
    "select count(*) from named where note in (select c from odd)",
    "select count(*) from named where note not in (select c from odd where c is not null)",
    "select count(*) from odd where r in (select m from f)",
    "select count(*) from odd where s in (select big from b)",
    "select count(*) from o where (select max(v) from o) = any(array[5, 6])",
    "select count(distinct c), count(distinct note) from odd, named",
    "select case c when 'b ' then 1 else 0 end, count(*) from odd group by 1",
    "select count(*) from (select c as x from odd union select note from named) z",
    "select substring(c, 1, 3) || '.', count(*) from odd group by 1",
    "select max(s) - min(s), avg(s), sum(s) from odd where id < 2",
    "select count(*) from odd where -s > 0 and id <> 3",
    "select id from o union all select 1.5 order by 1",
    "select count(*) from o left join iv on o.id = iv.id and exists (select 1 from q where q.id = o.k)",
    "select count(*) from o right join b using (id) where o.id is null",
    "select id, count(*) from o full join b using (id) group by id order by id",
    "select count(*) from o where k in (select k from iv group by k having count(*) > 1)",
    "select count(*) from o where not exists (select 1 from iv where iv.k = o.k and v is null)",
    "select (select count(*) from iv where iv.k = o.k), id from o",
    "select id from o where (select count(*) from iv where iv.k = o.k) = 0",
    "select id from o where (select coalesce(sum(id), -1) from iv where iv.k = o.k) < 0",
    "select sum((select max(b.n) from b where b.id = o.id)) from o",
    # Digits after the point.
    "select sum(x) from (select case when id < 3 then m else 0 end as x from f) d",
    "select sum(x), max(x) from (select coalesce(nullif(m, 1), 7) as x from f) d",
    "select avg(x) from (select k, avg(id) as x from o group by k) d",
    "select max(a) from (select k, avg(id) as a from iv group by k) d",
    "select a, count(*) from (select k, avg(id) as a from iv group by k) d group by a",
    "select distinct sum(m) / 2 from f group by id",
    "select m, m * 1.0, m * m, m + 0.001, -m, abs(m), round(m, 1), m - 1 from f",
    "select sum(m * 1.000), sum(m) filter (where false), sum(m + 0.1) from f where m > 1",
    "select sum(case when id = 1 then m * m else m end) from f where id = 99",
    "select greatest(m, 1.50), least(m, 2.00), greatest(m, 1.5) from f",
    "select sum(greatest(m, 1.50)) from f",
    "select sum(bal), sum(distinct bal), avg(distinct bal) from q",
    "select count(*) from q where bal = any(array[1.830, 2])",
    "select bal::numeric(8,3), sum(bal::numeric(5,1)) from q group by 1",
    "select sum(m), grouping(id) from f group by grouping sets ((id), ()) order by 2, 1",
    "select avg(m), count(*) from f group by rollup (id % 2) order by 1",
    "select avg(case when id > 1 then m end), avg(case when id > 1 then m else 0 end) from f",
    "select m, sum(m) over (order by m) from f",
    "select avg(x) from (select m / 3 as x from f) d",
    "with w as (select id, m from f) select sum(w.m), (select max(m) from w) from w",
    "with w as (select id, m from f where m > 1.00) select * from w where m < (select avg(m) from w) order by 1",
    "select (select avg(m) from f) + 1, count(*) from q",
    "select count(*) from q where bal + 0 > (select avg(m) from f where id > q.id)",
    "select id from q where bal < (select avg(m) from f where f.id = q.id)",
    "select id from q where bal < (select 2 * avg(m) - 1 from f where f.id = q.id)",
    "select count(*) from q where (select sum(bal) from q) = (select sum(bal) from q)",
    "select 1.10 as a, count(*) from q group by a",
    "select coalesce(p.price, q.bal), count(*) from p full join q using (id) group by 1",
    "select sum(coalesce(p.price, q.bal)) from p full join q using (id)",
    "select sum(coalesce(p.price, 0)) from p where price is null",
    "select max(coalesce(p.price, 0)), min(coalesce(p.price, 0.00001)) from p",
    "select id % 2 = 0, sum(price), max(price) from p group by 1 having sum(price) > 2.50",
    "select sum(id) / count(*), sum(id) * 1.0 / count(*), avg(id) from p",
    "select stddev(price), var_pop(id), avg(price * 1.10) from p",
    # Texts and times.
    "select count(*) from words where t = c",
    "select count(*) from words where v = c",
    "select count(*) from words where t = v or z = t",
    "select count(*) from words where v || c = 'a a' or c || v = 'aa '",
    "select length(c), length(v), length(t), substring(t from 2 for 1), substr(c, 1, 4) || '|' from words",
    "select count(*) from words where t like '%\\%\\_'",
    "select count(*) from words where t like 'a_' or c like 'a   ' or c like 'a'",
    "select count(*) from words where c::text like 'a' or v::text like 'a '",
    "select max(z), min(z) from words",
    "select max(t), min(c) from words",
    "select count(*) from words where z < 'b' and t > 'A'",
    "select count(*) from words where t || z < 'b'",
    "select count(distinct c || v), count(distinct t) from words",
    "select c, v, t, count(*) from words group by c, v, t",
    "select distinct c::text, v::char(3) from words",
    "select case when id = 1 then c else t end || '|', coalesce(c, v), coalesce(v, t) from words",
    "select nullif(v, 'a '), nullif(t, v), nullif(z, 'B') from words",
    "select count(*) from words where coalesce(c, t) = 'a ' or coalesce(v, 'x') = 'x'",
    "select count(*) from words where d = ts or d < ts",
    "select d + 1, d - 1, d - date '2020-01-01', count(*) from words group by d",
    "select count(*) from words where d between '2020-01-01' and '2020-02-29 00:00'::timestamp",
    "select extract(year from d), extract(month from ts), extract(epoch from d), count(*) from words group by d, ts",
    "select date_trunc('month', ts), date_trunc('month', d), count(*) from words group by 1, 2",
    "select ts::date, d::timestamp, count(*) from words group by 1, 2",
    "select count(*) from words where ts > 'yesterday' or d < 'today' or d = 'infinity'",
    "select count(*) from words where ts in ('2020-01-01 12:00', '1999-12-31 23:59:59.999999')",
    "select count(*) from words where d + interval '1 month' > ts",
    "select upper(t), count(*) from words where lower(c) = 'a' group by upper(t)",
    "select t, lag(t) over (order by id) from words order by id",
    "select id, t from words order by c, v, t nulls first",
    "select count(*) from words where (t, v) = ('a', 'a ') or (id, t) in ((1, 'a'))",
    "select count(*) from words where t is distinct from v and z is not distinct from c",
    "select w.* from words w where exists (select 1 from words where words.id = w.id + 1 and t is null)",
    "select count(*) from words a, words b where a.t = b.t and a.c <> b.c",
    "select (select t from words w where w.id = o.id), id from o",
    "select count(*) from o where exists (select 1 from words where v = 'B' and id = o.id)",
    "select count(*) from o where exists (select 1 from sales where v is null)",
    "select id, (select count(*) from sales where v is null) from o",
    "select x.v from (select v, id from o) x where exists (select 1 from iv where iv.id = x.id and k = 1)",
    "select t.a from (select id, v from o) t (a) where a > 1 and v is null",
    "select k, (select sum(amount) from sales where id <= max(o.id)) from o group by k",
    "select count(*) from o having exists (select 1 from sales where id = count(o.v))",
    "select coalesce(t, c) = 'a ', coalesce(c, t) = 'a ', case when id = 1 then t else c end = 'a ' from words",
    "select k as v, v as k from o order by v, k",
    "select -k as k from o group by o.k order by k",
    "select k + 1 as id, sum(id) from o group by o.k having sum(id) > 1 order by id",
    "select count(*) from o natural join b",
    "select sales.id from sales join o on sales.id = o.id and amount = k where v is null",
    # A subquery in LIMIT, and names of the block around and of another item of FROM.
    "select id from o order by id limit (select 2 from sales limit 1)",
    """select o.id, (select count(*) from f, (select id as k, amount, rank() over (order by id) from sales) s
       where k > 1 and lower(x::text) <> 'a' and f.id = amount) from o""",
    """select id, (select sum(s.amount) from sales s, (select k as z, rank() over (order by id) from iv) d where z = k
       and s.id < 3) from o""",
    "select distinct on (v) id as v, k from o order by v, k",
    "select distinct on (v) k as v from o order by v",
    "select sum(d.n) from (select k::int, id as n from o group by k, id order by k, n desc limit 2) d",
    "select sum(d.m) from (select (-k)::int % 2 as k, max(id) as m from o group by o.k order by k limit 1) d",
    "select sum(d.m) from (select (k % 2)::int, k::text::int % 2, max(id) as m from o group by k order by k limit 1) d",
    # Of varchar and text, PostgreSQL takes the type of the first, and of a CASE that of the default.
    "select count(*) from words where coalesce(v, t) = c",
    "select count(*) from words where coalesce(t, v) = c",
    "select count(*) from words a, words b where case when a.id > 0 then a.t else a.v end = b.c",
    "select count(*) from words a, words b where case when a.id > 0 then a.v else a.t end = b.c",
    "select count(*) from words a, words b where coalesce(a.t, a.v) = b.c",
    "select count(*) from words a, words b where coalesce('a ', a.v) = b.c",
    "select count(*) from words a, words b where coalesce(null, a.v, a.t) = b.c",
    "select count(*) from words where c in (select coalesce(v, t) from words)",
    "select coalesce(v, t) as x, count(*) from words group by coalesce(v, t) having coalesce(v, t) > ''",
    "select count(*) from words a, words b where case when a.id > 9 then a.v end = b.c or nullif(a.v, a.t) = b.c",
    "select count(*) from words where coalesce(v, t) in (select c from words)",
    "select count(*) from (select v from words union all select t from words) z, words w where z.v = w.c",
    "select count(*) from (select t from words union all select v from words) z, words w where z.t = w.c",
    "select pg_typeof(coalesce(v, t)), pg_typeof(coalesce(t, v)), id from words",
    "select pg_typeof(coalesce(v, t)), pg_typeof(case when v = 'a' then t else v end) from words group by 1, 2",
    "select coalesce(v, t) as x, pg_typeof(coalesce(v, t)), count(*) from words group by x",
    # A literal in a part of a set operation has the type of the other part.
    "select count(*) from (select v from words union all select 'zz') z, words w where z.v = w.c",
    "select count(*) from (select 'zz' as v union all select v from words) z, words w where z.v = w.c",
    "select count(*) from (select null as v union all select v from words) z, words w where z.v = w.c",
    "select count(*) from (select distinct 'a' as v union all select v from words) z, words w where z.v = w.c",
    "select count(*) from (select 'a' as v union all select 'a ' union all select v from words) z, odd where z.v = c",
    "select count(*) from (select '1' as v union all select id from words) z where v = 1",
    "select pg_typeof(v), count(*) from (select 'x' as v union all select v from words) z group by v",
    # Groups by constants only, over no rows.
    "select current_user as k, count(*) from emp group by k",
    "select count(*) from emp group by 1.5::float8",
    "select interval '1 day' as k, count(*) from emp group by k",
    "select 'total'::char(5) as k, count(*) from emp group by k",
    "select array[1, 2] as k, sum(v) from emp group by k",
    "select count(*) from emp group by grouping sets ((), (1.5::float8))",
    "select count(*) from emp group by grouping sets ((), (id))",
    "select count(*), 'a'::text as k from emp group by k",
    "select count(*) from emp group by ()",
    "select count(*) from emp group by rollup (2 - 1::int8, v)",
    # HAVING alone makes one group of all rows.
    "select * from (select 1 as x from o having true) d",
    "select * from (select 1 as x from emp having true) d",
    "select count(*) from o where exists (select 1 from emp having true)",
    "select count(*) from o where exists (select 1 from o having false)",
    "select count(*) from o where id in (select 1 from o having true)",
    "with d as (select 2 as x from o having 1 < 2) select sum(x) from d",
    "select 1 as x from o having true",
    # FULL JOIN USING chooses between numerics that print differently.
    "select x from (select 1.0 as x from q where id = 1) a full join (select 2.00 as x from p) b using (x)",
    "select x from (select 1.0 as x from p) a full join (select 1.00 as x from p) b using (x)",
    "select x, count(*) from (select 1.0 as x from o) a natural full join (select 2.00 as x from o) b group by x",
    "select x from (select m / 3 as x from f) a full join (select m as x from f) b using (x) order by 1",
    "select x from (select 1.0 as x from o) a join (select 1.00 as x from o) b using (x)",
    "select x from (select 1.0 as x from o) a right join (select 1.00 as x from o) b using (x)",
    # The order of a subquery is that of the result.
    "select * from (select id, k from iv order by id desc) d limit 2",
    "with d as (select id, k from iv order by id desc) select * from d limit 2",
    "with d as materialized (select id, k from iv order by id desc) select * from (select * from d) e limit 2",
    "select * from (select id as n from (select id from iv order by id desc) d where id > 1) e limit 2",
    "select * from (select id from iv order by id desc) d cross join (select count(*) from o) c limit 2",
    "select d.id, c.n from (select id from iv order by id desc) d, (select count(*) as n from o) c limit 2",
    "with d as (select id from iv order by id desc) select d.id, c.n from d, (select max(id) as n from d) c limit 1",
    "select * from (select d.id from (select id from iv order by id desc) d, (select count(*) from o) c) e limit 2",
    "select array(select d.id from (select id from iv order by id desc) d)",
    "select array(select d.id from (select id from iv order by id desc) d) from o",
    "select * from ((select id from iv order by id desc) union all (select id from o order by id desc)) d limit 2",
    "select d.*, row_number() over () from (select id from iv order by id desc) d",
    "select d.id, (select note from iv where iv.id = d.id) from (select id from o order by id desc) d limit 1",
    # An array has the order of its query.
    "select array(select id from iv)",
    "select array(select note from iv order by k)",
    "select array(select id from iv where iv.k = o.k) from o",
    "select array(select id as k from iv order by k desc) from o",
    "select array(select k::int from iv group by k, id order by k)",
    "select array(select n from f order by n)",
    "select array(select id from iv union all select id from o)",
    "select id = any(array(select id from iv)), array(select id from iv) from o",
    "select array(select id from iv order by id limit 2), array(select distinct k from iv order by k) from o",
    "with d as (select id, k from iv order by id desc) select array(select id from d), count(*) from o",
    "select array(select o.k from iv order by o.k), array(select count(*) from iv group by k order by 1) from o",
    "select * from (select id, k from iv order by id desc) d (a, b) where a > 1 limit 2",
    "with d as (select id, k from iv order by id desc) select (select max(id) from d), d.* from d limit 1",
    "select distinct k from (select k from iv order by id desc) d",
    "select * from (with x as (select id from iv order by id desc) select * from x) d limit 1",
    "with x as (select id from iv order by id desc), y as (select * from x) select * from y limit 1",
    "select * from (select * from (select id from iv order by id desc) d union all select id from o) e limit 1",
    # Items of grouping sets that are one column below.
    "select v, +v, count(*) from o group by rollup (v, +v)",
    "select v, v::varchar, count(*) from words group by rollup (v, v::varchar)",
    "select k, +k, grouping(k, +k), count(*) from o group by cube (k, +k)",
    "select o.k, k, count(*) from o group by rollup (o.k, k)",
    "select count(*), substr(t, 1, 2) from words group by rollup (substring(t, 1, 2), substr(t, 1, 2))",
    # Functions with other arguments than those that are proven, and results without columns.
    "select date_trunc('month', tz, 'UTC'), count(*) from bin group by 1",
    "select count(*) from bin where length(b, 'UTF8') = 3",
    "select count(*) from (select from o union select from b) d",
    "select count(*) from (select from o union all select from b) d",
)
ANSWERED = (
    "select lower(note) as c10, count(*) from iv group by c10",
    "select lower(note) as c1, lower(note) as c2, count(*) from iv group by c1, c2",
    "select max(big + -9999999999) from b",
    "select count(*) from o where v = -2147483648 or -9223372036854775808 < v",
    "select count(*) from q where bal > (select avg(price) from p)",
    "select count(*) from q where bal between 0 and (select avg(price) from p)",
    "select id, bal from q group by id having sum(bal) > (select avg(price) from p)",
    "select count(*), sum(m), avg(n), stddev(id), count(distinct x), max(m) from f",
    "select lower(note), count(*), max(lower(note)) from iv group by 1",
    "select distinct lower(note), k from iv",
    "select sum(m / 3), avg(round(m, 1)) from f",
    "select m from f union all select n from f",
    "select m from f union select price::numeric(9,2) from p",
    "select id, amount from sales except select id, id from products where id > 2",
    "select rank() over (order by k), sum(count(*)) over (order by k) from o group by k",
    """with x as (select id, lower(note) as low, rank() over (order by id desc) as r from iv)
       select x.low, o.v from o, x where o.id = x.id and r > 1""",
    """with x as (select id, lower(note) as n from iv group by id, note order by id, note limit 2)
       select x.n, o.v from o, x where o.id = x.id""",
    "select id, * from o",
    "select k, lag(count(*)) over (order by k), row_number() over (order by k desc) from iv group by k",
    "select count(*) from o join iv using (k)",
    "select * from o natural join (select k, note from iv) d",
    "select count(*), sum(id) from (select id, k from iv order by id desc) d",
    "select k, count(*) from (select id, k from iv order by id desc) d group by k",
    "with d as (select id, k from iv order by id) select k, max(id) from d group by k order by k",
    "select d.id, o.v from (select id, k from iv order by id) d join o using (id) order by 1",
    "select d.id, o.v from (select id, k from iv order by id) d join o using (id) order by 1 limit 2",
    "select * from (select id, k from iv order by id desc) d",
    "select array(select id from iv order by id), count(*) from o",
    "select id, array(select iv.id from iv where iv.k = o.k order by iv.id desc) from o order by 1",
    "select array(select note from iv group by note order by note), count(*) from o",
    "select count(*) from o where id = any(array(select k from iv)) or k <> all(array(select id from iv))",
    "select kind, count(*) from (select 'a' as kind, id from o union all select 'b', id from iv) d group by kind",
    "select kind, count(*) from (select t as kind from words union all select 'b') d group by kind",
    "select k, v, count(*) from o group by rollup (k, v)",
    "select coalesce(v, 'x'), count(*) from words group by 1",
    "select id, m from f join (select id, m from f) d using (id, m)",
    "select id, price from p full join products using (id, price)",
)
FAILING = ("select sum(big * -9999999999) from b",)


@pytest.fixture(scope="module")
def routes(server: Server) -> Iterator[tuple[Route, Route]]:
    database = create_database(server)
    database.run(*TABLES)
    with by_reference(database, Path()) as opened, source_session(database) as source:
        yield source, opened()
    database.drop()


@pytest.mark.parametrize("sql", TRAPS)
def test_what_means_something_else_below_is_refused_or_equal(routes: tuple[Route, Route], sql: str) -> None:
    source, split = routes
    expected, found = source.run(sql), split.run(sql)
    assert not expected.error, str(expected)
    if found.passed:
        assert found.reason.startswith("Unproven"), found.reason
    else:
        assert not difference(Statement(sql), expected, found), f"{expected}\n{found}"


@pytest.mark.parametrize("sql", ANSWERED)
def test_what_is_near_has_the_same_answer(routes: tuple[Route, Route], sql: str) -> None:
    source, split = routes
    expected, found = source.run(sql), split.run(sql)
    assert not expected.error, str(expected)
    assert found.by_mirror, found.reason
    assert not difference(Statement(sql), expected, found), f"{expected}\n{found}"


@pytest.mark.parametrize("sql", FAILING)
def test_an_error_of_the_source_is_not_answered(routes: tuple[Route, Route], sql: str) -> None:
    source, split = routes
    found = split.run(sql)
    assert source.run(sql).error
    assert found.passed, str(found)


@pytest.mark.parametrize(
    "values",
    [pa.array([1], pa.decimal128(38, 0)), pa.array([1], pa.decimal256(60, 3)), pa.array([{"a": 1}]), pa.nulls(1)],
    ids=lambda each: str(each.type),
)
def test_values_of_another_type_are_refused(values: pa.Array) -> None:
    column, scale = ir.TypedColumn("_c1", ir.decimal(38, 0)), ir.TypedColumn("_c2", ir.INT4)
    part = PlanPart(ir.Bottom(ir.OneRow(), (column, scale)), (Output("_c1", column, SqlType(1700), scale),), 1)
    scales = pa.array([pow(10, 9)], pa.int32())
    with pytest.raises(EngineRefused):
        array_parameters(part, pa.table([values, scales], ["_c1", "_c2"]))
