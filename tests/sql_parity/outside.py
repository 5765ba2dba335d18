"""Random statements that the mirror cannot prove, or must not: it passes them through, or answers as PostgreSQL does.

A template has places for columns of a family, such as `[text]`. Some statements are of the proven grammar, in sessions
where it means something else: user-defined operators, functions and types with the names of built-in ones, search
paths that find them first, and settings that change what a statement means or how its values print.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from tests.differential.statements import Relation
from tests.sql_parity.comparison import Statement
from tests.sql_parity.expressions import Scope
from tests.sql_parity.inside import From, Inside

FAMILIES = ("integer", "numeric", "text", "blanks", "float", "bool", "date", "timestamp", "timestamptz")
VALUES = (
    "lower([text])",
    "upper([blanks])",
    "length([blanks])",
    "char_length([text])",
    "octet_length([text])",
    "trim([text])",
    "trim(trailing from [blanks])",
    "[text] || [blanks]",
    "[blanks] || '|'",
    "replace([text], 'a', 'é')",
    "position('a' in [text])",
    "substring([text] from 0 for 2)",
    "substring([text] from -1 for 3)",
    "substring([text] from 'a.')",
    "left([text], -1)",
    "lpad([text], 5, '.')",
    "md5([text])",
    "concat([text], [integer], [date])",
    "regexp_replace([text], '[a-s]', 'X')",
    "split_part([text], ' ', 2)",
    "initcap([text])",
    "reverse([text])",
    "to_char([date], 'Day DD Mon YYYY')",
    "to_char([numeric], 'FM999,990.00')",
    "to_char([timestamptz], 'YYYY-MM-DD HH24:MI:SS TZ')",
    "date_trunc('month', [timestamp])",
    "date_trunc('day', [timestamptz])",
    "extract(dow from [date])",
    "extract(epoch from [timestamp])",
    "extract(hour from [timestamptz])",
    "date_part('year', [date])",
    "age([timestamp], timestamp '2000-01-01')",
    "[date] - date '2020-01-01'",
    "[date] + interval '1 month'",
    "[timestamptz] at time zone 'Europe/Berlin'",
    "[timestamp]::date",
    "[date]::timestamptz",
    "abs([integer])",
    "ceil([numeric])",
    "floor([numeric])",
    "round([numeric], 1)",
    "round([numeric])",
    "trunc([numeric], 1)",
    "mod([integer], 7)",
    "[integer] % 3",
    "[integer] / 7",
    "[numeric] / 3",
    "[integer] / nullif([integer], 0)",
    "[integer] & 3",
    "[integer] << 1",
    "power([numeric] / 1000, 2)",
    "sign([numeric])",
    "[numeric]::int8 / 2",
    "[numeric]::numeric(20,1)",
    "[numeric]::float8",
    "[float] * 2",
    "[float]::numeric(10,2)",
    "greatest([integer], [integer])",
    "least([date], date '2020-02-02')",
    "width_bucket([numeric], 0, 100, 5)",
    "[integer]::text",
    "[numeric]::text",
    "[date]::text",
    "[timestamptz]::text",
    "[bool]::text",
    "[blanks]::text",
    "[float]::text",
    "[text]::char(3)",
    "[text]::varchar(2)",
    "[bool]::int4",
    "pg_typeof([any])",
    "coalesce([integer], [numeric])",
    "coalesce([blanks], [text])",
    "nullif([blanks], [text])",
    "case when [bool] then [integer] else [numeric] end",
    "case [blanks] when 'a' then 1 when 'b ' then 2 end",
    "array[[integer], [integer]]",
    "row([integer], [text])",
    "jsonb_build_object('a', [integer], 'b', [text])",
    "to_jsonb([numeric])",
    "([any] is null)::int",
    "num_nulls([any], [any])",
    "[integer] between symmetric 5 and 1",
    "x1",
    "x1.ctid is not null",
    "x1.tableoid::regclass",
)
CONDITIONS = (
    "[text] < [text]",
    "[text] >= 'b'",
    "[text] > [blanks]",
    "[blanks] < 'b'",
    "[text] = [blanks]",
    "[blanks] = [blanks]::text",
    "[text] collate \"C\" < 'b'",
    "[text] ilike 'A%'",
    "[text] like '%\\%%'",
    "[text] like 'a!%%' escape '!'",
    "[text] like [text]",
    "[blanks] like 'a '",
    "[text] similar to '(a|b)%'",
    "[text] ~ '^[a-n]'",
    "[text] ~* 'SPECIAL'",
    "starts_with([text], 'so')",
    "[integer] = any(array[1, 2, 3])",
    "[integer] = any('{1,2,3}')",
    "[integer] <> all(array[1, null])",
    "[integer] = any(select x9.id from products x9)",
    "[integer] > all(select x9.units from products x9 where x9.units < 3)",
    "([integer], [text]) = (1, 'a')",
    "([integer], [integer]) < (5, 5)",
    "([integer], [integer]) in (select x9.id, x9.parent from products x9)",
    "([integer], [integer]) is distinct from ([integer], 3)",
    "[integer] is not distinct from [integer]",
    "[integer] = null",
    "[date] < now()",
    "[date] < current_date",
    "[date] > '2020-01-01'::timestamp",
    "[date] = [timestamp]",
    "[timestamp] < [timestamptz]",
    "[timestamptz] >= '2020-01-01'",
    "[timestamptz] < timestamp '2020-06-01 00:00'",
    "[date] in ('2020-01-01', 'epoch', 'infinity')",
    "([date], [date]) overlaps (date '2020-01-01', date '2020-06-01')",
    "[float] = 'NaN'",
    "[float] > 1",
    "[float] = [float]",
    "[numeric] = [float]",
    "[numeric] > 1e3",
    "[numeric] = 'NaN'",
    "[integer] = 1.5",
    "[integer] = '1'",
    "[integer] > 9999999999",
    "[integer] * 1000000 > 0",
    "[integer]::int2 = 5",
    "1 / [integer] = 0",
    "[bool] > false",
    "[bool] = 'yes'",
    "[bool] is unknown",
    "[any] is not null and [any] is null",
    "length([text]) > 1 and [text] not in ('a', 'b')",
    "[integer] in (select unnest(array[1, 2]))",
    "[integer] not in (select x9.parent from products x9)",
    "exists (select 1 from products x9 where x9.id = [integer] limit 0)",
    "exists (select from products x9 where x9.id = [integer] having count(*) > 0)",
    "[numeric] > (select avg(x9.price) from products x9 where x9.id < [integer])",
    "[integer] = (select x9.id from products x9)",
    "[integer] = (select count(*) from products x9 where x9.parent = [integer])",
    "random() >= 0",
    "pg_backend_pid() > 0",
    "x1.xmin is not null",
)
AGGREGATES = (
    "sum([float])",
    "avg([float])",
    "stddev([numeric])",
    "variance([integer])",
    "corr([float], [integer])",
    "min([text])",
    "max([blanks])",
    'min([text] collate "C")',
    "max([bool]::int)",
    "string_agg([text], ',' order by [id])",
    "string_agg(distinct [text], ',' order by [text])",
    "array_agg([integer] order by [id])",
    "array_agg(distinct [date])",
    "json_agg([numeric] order by [id])",
    "jsonb_object_agg([id], [text])",
    "percentile_cont(0.5) within group (order by [numeric])",
    "percentile_disc(0.5) within group (order by [integer])",
    "mode() within group (order by [integer])",
    "every([bool])",
    "bit_or([integer])",
    "sum(distinct [integer])",
    "avg(distinct [numeric])",
    "count(distinct ([integer], [text]))",
    "count(distinct [blanks])",
    "sum([integer]) filter (where [bool])",
    "sum([integer] / 7)",
    "sum([numeric] / 3)",
    "sum(round([numeric], 1))",
    "sum(length([text]))",
    "min([numeric] / 3)",
    "max([date] - date '2020-01-01')",
    "sum(case when [bool] then [integer] else [numeric] end)",
    "sum(case when [bool] then [numeric] else 0 end)",
    "sum(coalesce([numeric], 0))",
    "avg([integer] * 1.5)",
    "any_value(1)",
    "grouping([key])",
    "min([timestamptz] - [timestamptz])",
    "sum([date] - [date])",
    "max(array[[integer]])",
    "count(x1)",
    "count(*) over ()",
    "sum(sum([integer])) over (order by min([id]))",
)
SHAPES = (
    "select {v}, {v} from {f} where {c}",
    "select {v} from {f} where {c} or {c} order by 1",
    "select {a}, {a} from {f} where {c}",
    "select {a} from {f} where not ({c})",
    "select {k}, {a} from {f} where {c} group by {k} order by 1 limit 3",
    "select {v} as k, count(*), {a} from {f} group by {v1} order by 1",
    "select {k}, {a} from {f} group by rollup ({k})",
    "select {k}, {a} from {f} group by grouping sets (({k}), ())",
    "select {k}, {a} from {f} group by cube ({k}) having count(*) > 1",
    "select {k}, count(*) from {f} where {c} group by {k} having {a} is not null",
    "select distinct {v} from {f}",
    "select distinct on ({k}) {k}, {i} from {f} order by {k}, {i}",
    "select {i}, row_number() over (partition by {k} order by {i}) from {f}",
    "select {i}, sum([numeric]) over (order by {i} rows between 1 preceding and current row) from {f} where {c}",
    "select {i}, lag([text]) over (order by {i}), first_value([date]) over (partition by {k} order by {i}) from {f}",
    "select {i}, ntile(4) over w, dense_rank() over w from {f} window w as (order by {i})",
    "select {k} from {f} union select {k} from {f} where {c}",
    "select {k}, 1 from {f} union all select {k}, 2 from {f} where {c}",
    "select {i} from {f} intersect select x9.parent from products x9",
    "select {i} from {f} except all select x9.parent from products x9 order by 1",
    "select count(*) from (select {k} from {f} union all select {k} from {f}) u",
    "select {i}, l.n from {f}, lateral (select count(*) as n from products x9 where x9.parent = {i}) l",
    "select {i}, l.* from {f} left join lateral (select x9.label from products x9 where x9.id = {i} limit 1) l on true",
    "select {i}, u from {f}, unnest(array[1, [integer]]) u where {c}",
    "select g, count({i}) from generate_series(1, 5) g left join {f} on {i} = g group by g order by g",
    "select v.n, {i} from (values (1, 'a'), (2, 'b')) v (n, t) join {f} on {i} = v.n",
    "with recursive r (n) as (select 1 union all select n + 1 from r where n < 5) select n, {a} from r, {f} group by n",
    "with m as materialized (select * from {f} where {c}) select count(*) from m",
    "with m as (select {k} as k from {f}) select a.k, count(*) from m a join m b on a.k = b.k group by a.k",
    "select count(*) from {f} natural join products x8",
    "select count(*) from {f} join products x8 using (id)",
    "select count(*) from {f} cross join products x8 where x8.units = [integer]",
    "select sum(d.n) from (select {k}, count(*) as n from {f} group by {k} limit 3) d",
    "select sum(d.n) from (select count(*) as n from {f} group by {k} having count(*) > 1) d",
    "select (select {a} from {f}), (select count(*) from nothing)",
    "select {i}, (select max(x9.price) from products x9 where x9.parent = {i}) from {f}",
    "select {i}, (select x9.price from products x9 where x9.parent = {i}) from {f}",
    "select {i}, exists (select 1 from products x9 where x9.id = {i}) from {f}",
    "select {i} in (select x9.parent from products x9) as known, count(*) from {f} group by 1",
    "select {i} from {f} where {c} order by {k} nulls first, {i} limit 3 offset 1",
    "select {k} from {f} group by {k} order by count(*) desc, {k} fetch first 2 rows with ties",
    "select * from {f} where {c}",
    "select x1.* from {f} order by {i} limit 2",
    'select count(*) as "Count", sum([integer]) "a b" from {f}',
    "select {a} as a, {a} as a from {f}",
    "select sum([integer]) sum, sum([integer]) from {f}",
    "select 1 from {f} where {c} having count(*) > 0",
    "select from {f} limit 2",
    "select count(*) from only {f}",
    "select count(*) from {f} tablesample system (100)",
    "select {i} from {f} where {c} for share",
    "select {k}, count(*) from {f} where {c} group by {k} for update",
    "select sum([integer]) from {f} where false",
    "select sum([integer]) from {f} limit 0",
    "select count(*) from {f} where [integer] = 1 / 0",
    "select missing from {f}",
    "select count(*) from missing",
    "select [text]::int4 from {f}",
    "select sum([text]) from {f}",
    "select count(*) from big_sales where amount > 0",
    "select count(*), sum(s.amount) from sales s join unmirrored u on u.id = s.id",
    "select count(*), sum(n) from unmirrored",
    "select count(*), sum(n) from guarded",
    "select count(*), sum(n) from parent",
    "select count(*), sum(n) from only parent",
    "select count(*) from pg_class where relname = 'sales'",
    "select count(*) from information_schema.columns where table_name = 'sales'",
    "select doubled([integer]), count(*) from {f} group by 1 order by 1",
    "select sum(doubled([integer])) from {f}",
    "select sum([integer]) from {f} where doubled([integer]) > 3",
    "select odd.sum([integer]) from {f}",
    "select pg_catalog.sum([integer]) from {f}",
    "select count(*) from {f} where [integer] operator(pg_catalog.=) 3",
    "select count(*) from {f} where [integer] operator(odd.<<<) 3",
    "select count(*) from public.customers c, odd.customers o where c.id = o.id",
    "table products",
    "values (1, 'a'), (2, 'b')",
    "select 1 as one, 'x' as text, null as nothing",
    "select current_setting('timezone'), sum([integer]) from {f}",
    "select now() is not null, count(*) from {f}",
    "select (array_agg({i} order by {i}))[1:2] from {f}",
    "select count(*) filter (where {c}), count(*) from {f}",
    "select max({i}) - min({i}), sum([numeric]) / count([numeric]), avg([numeric]) from {f} where {c}",
    "select json_build_object('n', count(*), 'sum', sum([numeric])) from {f}",
    "select extract(year from [date]) as y, to_char(sum([numeric]), '9.99EEEE') from {f} group by y order by y",
    "select [blanks], length([blanks]), count(*) from {f} group by 1, 2",
    "select max([blanks]), min([text]) from {f}",
    "select {k} as t, count(*) from {f} group by {k} order by {k} desc nulls last limit 5",
)
SETTINGS: tuple[tuple[str, ...], ...] = (
    ("set search_path = odd, public",),
    ("set search_path = public, odd",),
    ("set search_path = odd, pg_catalog, public",),
    ("set search_path = public, odd, pg_catalog",),
    ("set search_path = odd",),
    ("set timezone = 'America/New_York'",),
    ("set datestyle = 'German'",),
    ("set datestyle = 'SQL, DMY'",),
    ("set intervalstyle = 'iso_8601'",),
    ("set extra_float_digits = 0",),
    ("set bytea_output = 'escape'",),
    ("set transform_null_equals = on",),
    ("set standard_conforming_strings = off", "set escape_string_warning = off"),
    ("set default_transaction_isolation = 'serializable'",),
    ("set default_transaction_read_only = on",),
    ("set client_encoding = 'LATIN1'",),
    ("set lc_numeric = 'C'", "set row_security = off"),
    ("set xmloption = 'document'", "set array_nulls = off"),
    ("set plan_cache_mode = force_generic_plan", "set enable_hashagg = off"),
)
# What the application has beside its tables. Names in `odd` are those of built-in objects.
OBJECTS = (
    "create schema odd",
    "create function odd.never(varchar, varchar) returns bool language sql immutable as 'select false'",
    "create operator odd.= (leftarg = varchar, rightarg = varchar, function = odd.never)",
    "create function odd.always(int4, int8) returns bool language sql immutable as 'select true'",
    "create operator odd.< (leftarg = int4, rightarg = int8, function = odd.always)",
    "create function odd.seven(numeric, int4) returns numeric language sql immutable as 'select 7.0'",
    "create operator odd.* (leftarg = numeric, rightarg = int4, function = odd.seven)",
    "create function odd.unlike(varchar, text) returns bool language sql immutable as 'select true'",
    "create operator odd.~~ (leftarg = varchar, rightarg = text, function = odd.unlike)",
    "create function odd.same(int4, int4) returns bool language sql immutable as 'select $1 is not distinct from $2'",
    "create operator odd.<<< (leftarg = int4, rightarg = int4, function = odd.same)",
    "create function odd.substring(text, int4, int4) returns text language sql immutable as 'select ''odd''::text'",
    "create function odd.abs(int4) returns int4 language sql immutable as 'select 42'",
    "create function odd.round(numeric, int4) returns numeric language sql immutable as 'select 3.14'",
    "create aggregate odd.sum(int4) (sfunc = int4larger, stype = int4)",
    "create aggregate odd.count(int4) (sfunc = int4larger, stype = int4)",
    "create aggregate odd.max(varchar) (sfunc = textcat, stype = text)",
    "create aggregate odd.avg(numeric) (sfunc = numeric_larger, stype = numeric)",
    "create domain odd.date as pg_catalog.date check (value is null or value < '2020-06-01')",
    "create domain odd.int8 as text",
    "create table odd.customers (id int4 primary key, region int2, balance numeric(12,2))",
    "insert into odd.customers values (1, 1, 5), (2, null, 7)",
    "create view odd.sales as select id, product, amount * 2 as amount from public.sales",
    "create function doubled(int4) returns int8 language sql immutable as 'select $1::int8 * 2'",
    "create view big_sales as select * from sales where amount > 1",
    "create table unmirrored (id int4 primary key, n int4)",
    "insert into unmirrored select i, i from generate_series(1, 50) i",
    "create table guarded (id int4 primary key, n int4)",
    "insert into guarded select i, i from generate_series(1, 50) i",
    "alter table guarded enable row level security",
    "alter table guarded force row level security",
    "create policy few on guarded using (id < 10)",
    "create table parent (id int4 primary key, n int4)",
    "create table child () inherits (parent)",
    "insert into parent values (1, 1)",
    "insert into child values (2, 2)",
)
# Equality that is not that of the bytes; only a server with ICU has such collations.
NONDETERMINISTIC = (
    "create collation folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
    "create table folds (id int4 primary key, word text collate folded, plain text)",
    "insert into folds values (1, 'a', 'a'), (2, 'A', 'A'), (3, 'b', 'a'), (4, null, null), (5, 'B', 'b')",
)
FOLDED = (
    "select count(*) from folds where word = 'a'",
    "select count(*) from folds where plain = 'a'",
    "select word, count(*) from folds group by word order by count(*), lower(word)",
    "select count(distinct word) from folds",
    "select count(*) from folds a join folds b on a.word = b.plain collate folded",
    "select count(*) from folds where plain in ('A' collate folded)",
    "select count(*) from folds where word like 'a%' collate \"C\"",
    "select plain from folds where plain = 'a' collate folded order by id",
)
_PLACE = re.compile(r"\[(\w+)\]")


class Outside(Inside):
    """Writes statements over some tables, the tame ones and `OBJECTS` among them."""

    def __init__(self, chance: Random, relations: Sequence[Relation], *, folds: bool = False) -> None:
        super().__init__(chance, relations)
        self._folds = folds

    def statement(self) -> Statement:
        """One statement, outside of the proven grammar or in a session in which it may mean something else."""
        self._aliases = 0
        chance = self.chance
        settings = chance.choice(SETTINGS) if chance.random() < 0.3 else ()
        if settings and chance.random() < 0.6:
            statement = super().statement()
            return replace(statement, settings=settings, kind=f"odd session: {statement.kind}")
        if self._folds and chance.random() < 0.05:
            return Statement(chance.choice(FOLDED), settings=settings, kind="nondeterministic")
        shape = chance.choice(SHAPES)
        return Statement(self._filled(shape), settings=settings, kind=shape)

    def _filled(self, shape: str) -> str:
        source = self._item(derived=False)
        if self.chance.random() < 0.2 and "only" not in shape and "tablesample" not in shape:
            source = self._with_partner(source)
        scope, identity = source.scope, source.keys[0]
        key = (self.column(scope, ("integer", "text", "date", "blanks", "bool")) or scope[0]).sql
        value = self._placed(self.chance.choice(VALUES), scope, key)
        parts = {"{f}": source.sql, "{k}": key, "{i}": identity, "{v1}": value}
        if "{v1}" in shape:
            parts["{v}"] = value
        for place, text in parts.items():
            shape = shape.replace(place, text)
        for place, texts in (("{v}", VALUES), ("{c}", CONDITIONS), ("{a}", AGGREGATES)):
            while place in shape:
                some = self._placed(self.chance.choice(texts), scope, key)
                if place == "{c}" and self.chance.random() < 0.4:
                    some = self.condition(scope, 1)
                shape = shape.replace(place, some, 1)
        return self._placed(shape, scope, key)

    def _with_partner(self, source: From) -> From:
        other = self._item(derived=False)
        sql = f"{source.sql} left join {other.sql} on {other.keys[0]} = {source.keys[0]}"
        return From(sql, (*source.scope, *other.scope), (), source.keys)

    def _placed(self, template: str, scope: Scope, key: str) -> str:
        """The template with a column, or a constant where no column has the family."""

        def column(match: re.Match[str]) -> str:
            family = match[1]
            if family == "id":
                return scope[0].sql
            if family == "key":
                return key
            found = self.column(scope) if family == "any" else self.column(scope, (family,))
            return found.sql if found is not None else CONSTANTS[family]

        return _PLACE.sub(lambda match: column(match) if match[1] in PLACES else match[0], template)


CONSTANTS = {
    "integer": "1",
    "numeric": "1.50",
    "text": "'a'::text",
    "blanks": "'a'::char(4)",
    "float": "0.1::float8",
    "bool": "true",
    "date": "date '2020-01-01'",
    "timestamp": "timestamp '2020-01-01 00:00:00'",
    "timestamptz": "timestamptz '2020-01-01 00:00:00+00'",
}
PLACES = frozenset({*FAMILIES, "id", "key", "any"})
