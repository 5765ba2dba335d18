"""Statements of which each has one way to go wrong, over the tame tables and `OBJECTS`."""

from __future__ import annotations

# The mirror answers these.
PROVEN = (
    "select count(*) from sales where note not like '%special%'",
    "select count(*), sum(amount) from sales where state = 'north' and note <> 'a'",
    "select count(*) from sales where product not in (1, 2, 3)",
    "select count(*) from customers where code = 'a' and segment = 'a'",
    "select count(*) from customers where balance in (1, 0.000000000000000000000000000001)",
    "select count(*) from customers where balance not in (1.5, 0.000000000000000000000000000001)",
    "select code, count(*), min(balance), avg(balance) from customers group by code order by code",
    "select sum(case when quantity > 5 then discount else 0 end), sum(discount) from sales where quantity < 0",
    "select sum(case when id > 1000000 then amount else 0 end) from sales",
    "select sum(price::numeric(12,1)), max(price) from products",
    "select product, sum(amount * (1 - discount)) from sales group by product having sum(quantity) > 3 order by 2, 1",
    "select count(*) from sales where customer not in (select id from customers where product is not null)",
    "select count(*) from customers c full join sales s on s.customer = c.id where c.id is null or s.id is null",
    "select region, count(s.id) from customers c left join sales s on s.customer = c.id and amount > 1 group by region",
    "select extract(year from sold), count(distinct product), count(distinct state) from sales group by 1 order by 1",
    "select count(*) from sales where sold >= date '2020-01-01' and sold < date '2020-01-01' + interval '3' month",
    "select max(amount) - min(amount), round(avg(amount), 3), sum(amount) / 7 from sales where id < 0",
    "select count(*) from sales where weight > 1 or weight = 'NaN'",
    "select sum(d.n) from (select product, sum(amount) as n from sales group by product order by n, 1 limit 3) d",
    "select count(*) from sales s where exists (select from products p where p.id = s.product and p.price > 1)",
    "select sum(quantity) filter (where amount > 0), bool_and(amount > -1000) from sales",
    "with g as (select product, count(*) as n from sales group by product) select n, count(*) from g group by n",
    "select substring(note from 1 for 2), count(*) from sales group by 1",
    "select state, sum(quantity), rank() over (order by sum(quantity) desc, state) from sales group by state",
)
# These mean something else in the session, or are not proven: the mirror does not answer them, or answers the same.
PASSED = (
    ("set search_path = public, odd", "select count(*) from sales where note = 'a'"),
    ("set search_path = public, odd", "select sum(amount * quantity) from sales"),
    ("set array_nulls = off", "select distinct char_length(segment) from customers"),
    ("set array_nulls = off", "select note, count(*) from sales group by note"),
    ("set search_path = odd, pg_catalog, public", "select sum(quantity) from public.sales"),
    ("set search_path = odd", "select count(*) from customers"),
    ("set transform_null_equals = on", "select count(*) from sales where note = null"),
    ("set standard_conforming_strings = off", "select count(*) from sales where note = 'a\\\\b'"),
    ("set search_path = public", "select count(*), sum(n) from guarded"),
    ("set search_path = public", "select count(*), sum(n) from parent"),
    ("set search_path = public", "select count(*), sum(n) from unmirrored where n > any (select 1)"),
    ("set search_path = public", "select count(*) from sales where exists (select 1 from products limit 0)"),
    ("set search_path = public", "select sum(weight) from sales where weight > -1 and weight < 1e9"),
    ("set search_path = public", "select free, count(*) from strange group by free"),
    ("set search_path = public", "select count(*) from spans natural join other_spans"),
    ("set search_path = public", "select 1 as span, count(*) from spans group by span"),
    ("set search_path = public", "select count(*) from named where exists (select 1 from spans where span is null)"),
    (
        "set search_path = public",
        "select count(*) from sales where exists (select generate_series(1, 0) from products)",
    ),
    ("set search_path = public", "select max((select avg(price) from products)) from sales"),
    ("set search_path = public", "select count(*) from sales where amount > -(select avg(price) from products)"),
    ("set search_path = public", "select count(*) from sales where amount < abs((select avg(-price) from products))"),
    (
        "set search_path = public",
        "select sum(a) from (select (select avg(price) from products) a from sales) d",
    ),
    (
        "set search_path = public",
        "with a as (select 1), sales as (table products) select count(*) from (with a as (table sales) table a) x",
    ),
)
# Tables with columns of a type that is not computed with.
TABLES = (
    "create table spans (id int4 primary key, span interval, n int4)",
    "insert into spans values (1, '1 day', 1), (2, '2 days', 1), (3, null, 2), (4, '1 day', 2)",
    "create table other_spans (other int4 primary key, span interval, n int4)",
    "insert into other_spans values (1, '1 day', 1), (2, '7 days', 1), (3, '9 days', 2)",
    "create table named (id int4 primary key, span int4)",
    "insert into named values (1, null), (2, 5), (3, null)",
)
