"""The user's SQL with placeholders for tables: the rules as sentences, and Spark itself as the judge of the meaning."""

import re
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from string import Formatter
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tests.conftest import INTERPRETED
from tests.mirror.conftest import set_in
from tidemark.errors import InvalidValue
from tidemark.mirror.sql import Statement, bind

pytestmark = pytest.mark.quick

KNOWN = [
    ("public", "orders"),
    ("public", "lines"),
    ("public", "Mixed"),
    ("public", "twin"),
    ("public", "Twin"),
    ("crm", "customers"),
    ("crm", "orders"),
    ("crm", "Mixed"),
]
PATH = ("public", "crm")


def text_of(sql: str) -> str:
    return bind(sql, KNOWN).text


def refusal(sql: str, known: list[tuple[str, str]] | None = None) -> str:
    with pytest.raises(InvalidValue) as caught:
        bind(sql, KNOWN if known is None else known)
    assert caught.value.hint
    return str(caught.value)


def test_a_table_becomes_a_placeholder_and_keeps_its_alias() -> None:
    bound = bind("select o.id from public.orders o join crm.customers AS c on o.cid = c.id", KNOWN)
    assert bound.text == "select o.id from {t0} o join {t1} AS c on o.cid = c.id"
    assert bound.tables == {"t0": ("public", "orders"), "t1": ("crm", "customers")}


def test_a_table_without_an_alias_gets_its_own_name() -> None:
    assert text_of("select orders.id from public.orders") == "select orders.id from {t0} AS `orders`"
    assert text_of("from orders select id") == "from {t0} AS `orders` select id"
    assert text_of("select * from orders, lines") == "select * from {t0} AS `orders`, {t1} AS `lines`"
    assert text_of("select * from (orders)") == "select * from ({t0} AS `orders`)"


def test_a_table_that_is_read_twice_has_one_placeholder() -> None:
    bound = bind("select 1 from orders a, public.orders b, ORDERS c", KNOWN)
    assert bound.text == "select 1 from {t0} a, {t0} b, {t0} c"
    assert bound.tables == {"t0": ("public", "orders")}


def test_every_other_byte_stays() -> None:
    sql = "\tSELECT  'from public.orders', \"from lines\", r'\\' , 'it''s \\' x' -- from lines \\\n still\r\n"
    sql += "/* from lines /* nested */ from crm.x */ , $$ from lines '$$, :p, ?, `a``b`, 1.e3\xa0, "
    sql += "'é😀'  FROM {} o\t;\n"
    assert text_of(sql.format("public.orders")) == sql.format("{t0}")


def test_a_comment_inside_a_name_stays() -> None:
    bound = text_of("select public/* b */.orders.id from public --a\n./* b */orders")
    assert bound == "select `orders`/* b */.id from {t0} --a\n/* b */ AS `orders`"


def test_the_users_braces_are_doubled_for_the_formatter() -> None:
    sql = "select '{t0} {} {{' as `{x}` from {} -- }}"
    bound = text_of("select '{t0} {} {{' as `{x}` from orders o -- }}")
    assert Formatter().vformat(bound, (), {"t0": "V"}) == sql.replace("from {}", "from V o")


def test_a_query_without_tables_is_left_as_it_was() -> None:
    for sql in ("select '{}'", "values (1), (2)", "select * from range(10)", "with a as (select 1) select * from a;"):
        assert bind(sql, KNOWN) == Statement(sql, {})


def test_a_name_that_only_a_backtick_separates_stays_separate() -> None:
    assert text_of("select*from`orders`where id=1") == "select*from {t0}  AS `orders`where id=1"
    assert text_of("select*from`orders`o") == "select*from {t0} o"


ODD_NAMES = [
    "Odd.Name",
    "a`b",
    "a b",
    "it's",
    'q"q',
    "100%",
    "{0}",
    "}{",
    "größe 😀",
    "select",
    "from",
    "--",
    "/*",
    "\\",
]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_any_name_works_in_backticks(name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    known = [("public", name), (name, "t"), ("public", "t")]
    whole = quoted.replace("{", "{{").replace("}", "}}")
    bound = bind(f"select {quoted}.id, public.{quoted}.id from {quoted} where exists (from {quoted}.t)", known)
    assert bound.text == f"select {whole}.id, {whole}.id from {{t0}} AS {whole} where exists (from {{t1}} AS `t`)"
    assert bound.tables == {"t0": ("public", name), "t1": (name, "t")}


def test_the_exact_spelling_wins_and_then_the_only_one_that_differs_in_case() -> None:
    assert bind("select * from Twin, twin t", KNOWN).tables == {"t0": ("public", "Twin"), "t1": ("public", "twin")}
    assert bind("select * from PUBLIC.mixed", KNOWN).tables == {"t0": ("public", "Mixed")}
    assert "table name TWIN is ambiguous: public.`Twin` and public.twin" in refusal("select * from TWIN")


def test_a_name_without_a_schema_is_looked_for_along_the_search_path() -> None:
    sql = "select * from orders, customers, mixed"
    assert list(bind(sql, KNOWN, PATH).tables.values()) == [KNOWN[0], ("crm", "customers"), ("public", "Mixed")]
    assert list(bind(sql, KNOWN, PATH[::-1]).tables.values()) == [KNOWN[6], ("crm", "customers"), ("crm", "Mixed")]
    assert "table customers does not exist in schema public" in refusal(sql)
    assert "crm.customers" in refusal(sql)


def test_an_unknown_table_is_refused_with_what_is_like_it() -> None:
    assert (
        "odrers does not exist in schema public (line 2, column 6)\nHint: Did you mean crm.orders or public.orders?"
        in refusal("select *\nfrom odrers")
    )
    assert "Tables of the mirror: crm.`Mixed`, crm.customers" in refusal("select * from zzzzz")
    assert "no table is mirrored yet" in refusal("select * from orders", known=[])


@pytest.mark.parametrize(
    "marked",
    [
        "with orders as (select * from <orders>) select * from orders",
        "with A as (select 1), b as (select * from a) select * from `a`, B",
        "with recursive orders(n) as (select 1 union all select n + 1 from orders) select * from orders",
        "with a as (with lines as (select 1) select * from lines) select * from a, <lines>",
        "with lines as (select * from <orders>), orders as (select 1) select * from lines, orders",
        "with orders as (select 1) select * from <public.orders>",
        "(with orders as (select 1) select * from orders) union all select * from <orders>",
        "with lines as (select 1) select * from lines union all select 1 where exists (select 1 from lines)",
        "select * from (with lines as (select 1) select * from lines), <lines>",
        "with a as (select 1) select * from a where exists (with b as (select * from a) select * from b, <orders>)",
    ],
)
def test_a_name_that_a_with_defines_is_no_table_where_it_is_in_scope(marked: str) -> None:
    """Tables are marked <so>."""
    bound = bind(marked.replace("<", "").replace(">", ""), KNOWN)
    assert bound.text == re.sub(r"<(?:public\.)?(\w+)>", r"{t0} AS `\1`", marked)
    assert len(bound.tables) == marked.count("<")


def test_a_column_qualified_with_its_schema_follows_the_table_to_its_alias() -> None:
    assert text_of("select public.orders.id, PUBLIC.Orders.*, `public`.`orders`.a.b.c[0] from orders") == (
        "select `orders`.id, `orders`.*, `orders`.a.b.c[0] from {t0} AS `orders`"
    )
    assert text_of("select 1 from orders where exists (select 1 from lines where public.orders.id = oid)") == (
        "select 1 from {t0} AS `orders` where exists (select 1 from {t1} AS `lines` where `orders`.id = oid)"
    )


def test_a_column_of_a_table_with_an_alias_is_left_to_spark() -> None:
    assert text_of("select public.orders.id from orders o") == "select public.orders.id from {t0} o"


@pytest.mark.parametrize(
    "sql",
    [
        "select public.orders.id from public.orders join crm.orders on true",
        "select 1 from public.orders where exists (select 1 from crm.orders where public.orders.id = 1)",
        "select 1 from public.orders where exists (select 1 from crm.customers orders where public.orders.id = 1)",
        "select 1 from public.orders where exists (select 1 from (select 1 as id) orders where public.orders.id = 1)",
        "select 1 from public.orders where exists (with orders as (select 1) select public.orders.id from orders)",
        "select public.orders.id from public.orders lateral view explode(array(1)) orders as x",
    ],
)
def test_a_qualified_column_that_another_relation_would_capture_is_refused(sql: str) -> None:
    assert "another relation is named orders" in refusal(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "select * from range(10), explode(array(1)) t, inline(array(struct(1))) u",
        "select * from values (1, 2), (3, 4) as t(a, b)",
        "select * from (values 1, null, date '2020-01-01') v lateral view explode(array(1)) t as k, l",
        "select extract(year from d), trim(both 'x' from y), trim(from z), a is not distinct from b from (select 1)",
        "select substring(a from 2 for 1), overlay(a placing b from 3), x.from from (select 1) x",
    ],
)
def test_table_functions_and_inline_tables_are_left_alone(sql: str) -> None:
    assert bind(sql, KNOWN) == Statement(sql, {})


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("range(3), orders", "range(3), {t0} AS `orders`"),
        ("values (1), (2) t(a), orders", "values (1), (2) t(a), {t0} AS `orders`"),
        ("orders lateral view explode(a) t as k, lines", "{t0} AS `orders` lateral view explode(a) t as k, lines"),
        ("orders, lateral (select * from lines)", "{t0} AS `orders`, lateral (select * from {t1} AS `lines`)"),
        ("orders tablesample (5 rows)", "{t0} tablesample (5 rows) AS `orders`"),
        ("orders tablesample (5 percent) repeatable (1) o", "{t0} tablesample (5 percent) repeatable (1) o"),
        ("orders pivot (sum(x) for y in (1, 2)) p", "{t0} AS `orders` pivot (sum(x) for y in (1, 2)) p"),
        ("(orders o join lines l using (id)), crm.orders", "({t0} o join {t1} l using (id)), {t2} AS `orders`"),
        (
            "orders o join lines on o.id = lines.id, customers c",
            "{t0} o join {t1} AS `lines` on o.id = lines.id, {t2} c",
        ),
        ("f(table (select * from orders))", "f(table (select * from {t0} AS `orders`))"),
    ],
)
def test_each_kind_of_relation_is_found(sql: str, text: str) -> None:
    assert bind(f"select * from {sql}", KNOWN, PATH).text == f"select * from {text}"


@pytest.mark.parametrize(
    ("sql", "text", "only"),
    [
        ("only public.orders", "  {t0} AS `orders`", {"t0"}),
        ("ONLY orders o", "  {t0} o", {"t0"}),
        ("only(crm.orders)o", "  {t0} o", {"t0"}),
        ("only ( `orders` ) as o", "    {t0}   as o", {"t0"}),
        ("only orders tablesample (5 rows)", "  {t0} tablesample (5 rows) AS `orders`", {"t0"}),
        ("lines, only orders", "{t0} AS `lines`,   {t1} AS `orders`", {"t1"}),
        ("orders a join only orders b using (id)", "{t0} a join   {t1} b using (id)", {"t1"}),
        ("only orders a, only public.orders b", "  {t0} a,   {t0} b", {"t0"}),
        ("orders*", "{t0}  AS `orders`", set()),
        ("orders * o, lines * where o.id > 2 * 3", "{t0}   o, {t1}   AS `lines` where o.id > 2 * 3", set()),
        ("(select * from only orders) x", "(select * from   {t0} AS `orders`) x", {"t0"}),
    ],
)
def test_postgresqls_only_and_star_are_understood_and_taken_out(sql: str, text: str, only: set[str]) -> None:
    bound = bind(f"select * from {sql}", KNOWN, PATH)
    assert bound.text == f"select * from {text}"
    assert bound.only == only


def test_only_is_a_name_where_no_name_follows_it() -> None:
    known = [("public", "only"), ("only", "orders")]
    assert bind("select * from only where id = 1", known).text == "select * from {t0} AS `only` where id = 1"
    assert bind("select * from only as o", known).text == "select * from {t0} as o"
    assert bind("select * from `only` o", known).text == "select * from {t0} o"
    assert bind("select * from only.orders", known).text == "select * from {t0} AS `orders`"
    assert bind("select * from only only", known).only == {"t0"}


def test_a_key_is_looked_up_by_only_as_well() -> None:
    bound = bind("select * from only orders where id = 5", KNOWN)
    assert {name: literal.text for name, literal in bound.lookups["t0"].items()} == {"id": "5"}


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("select * from only (select * from orders)", "ONLY requires the name of one table"),
        ("select * from only (orders, lines)", "ONLY requires the name of one table"),
        ("select * from only orders *", "ONLY requires the name of one table"),
        ("select * from only range(3)", "ONLY requires the name of one table"),
        ("select * from only (5)", "found 5"),
        ("with x as (select 1) select * from only x", "x, which is defined by WITH"),
        ("with x as (select 1) select * from x *", "x, which is defined by WITH"),
    ],
)
def test_only_of_what_is_no_table_is_refused(sql: str, what: str) -> None:
    assert what in refusal(sql)


def test_hints_stay_and_still_name_the_table() -> None:
    sql = "select /*+ broadcast(orders), coalesce(3) */ * from {}"
    assert text_of(sql.format("orders")) == sql.format("{t0} AS `orders`")
    assert "a hint contains a query" in refusal("select /*+ broadcast((select 1 from lines)) */ 1 from orders")


def test_a_text_hint_is_taken_out_and_its_columns_are_kept() -> None:
    bound = bind("select /*+ TEXT(orders.due, `a b`) */ *\nfrom orders", KNOWN)
    assert bound.as_text == (("orders", "due"), ("a b",))
    assert "/*" not in bound.text
    for hint, left in (("text(x), broadcast(o)", "broadcast(o)"), ("broadcast(o), text(x)", "broadcast(o)")):
        bound = bind(f"select /*+ {hint} */ * from orders o", KNOWN)
        assert bound.as_text == (("x",),)
        assert " ".join(bound.text.split()) == f"select /*+ {left} */ * from {{t0}} o"
    for wrong in ("text", "text()", "text(a,)", "text(a b)", "text(1)", "text(a"):
        assert "invalid TEXT hint (line 1, column 12)" in refusal(f"select /*+ {wrong} */ 1")


@pytest.mark.parametrize(
    "sql",
    [
        "select o.id,\n '{x}' from public.orders o\njoin only (crm.customers) on public.orders.id = 1",
        "select `orders`.id from`orders`where orders.id=1",
        "with a as (select * from lines *)\nselect /*+ text(x) */ * from a, orders",
    ],
)
def test_every_offset_in_sparks_text_leads_to_the_text_that_was_typed(sql: str) -> None:
    bound = bind(sql, KNOWN)
    for size in (41, 59):
        rendered = bound.text.format(**dict.fromkeys(bound.tables, "v" * size)) if bound.tables else bound.text
        names = {name for key in bound.tables.values() for name in key}
        words = [word for word in re.findall(r"\w+", rendered) if rendered.count(word) == sql.count(word) == 1]
        words = [word for word in words if word not in names]
        assert len(words) > 1
        assert [bound.origin(rendered.index(word), size) for word in words] == [sql.index(word) for word in words]
        assert [bound.origin(bound.rendered(at, size), size) for at, char in enumerate(sql) if char == "\n"] == [
            at for at, char in enumerate(sql) if char == "\n"
        ]


@pytest.mark.parametrize(
    ("sql", "what"),
    [
        ("select * from db.public.orders", "more than two parts"),
        ("select * from a.db.public.orders", "more than two parts"),
        ("select * from parquet.`/tmp/x`", "is a path"),
        ("select * from delta.`s3://b/x`", "is a path"),
        ("select * from orders version as of 3", "mirror.at(…)"),
        ("select * from orders timestamp as of '2026-01-01' o", "mirror.at(…)"),
        ("select * from orders for system_time as of '2026-01-01'", "mirror.at(…)"),
        ("select * from orders@v3", "mirror.at(…)"),
        ("select * from orders changes from version 1", "CHANGES FROM"),
        ("select * from orders with (x = 1)", "options"),
        ("select * from identifier('public.orders')", "not supported as a table"),
        ("select * from public.identifier('orders')", "not supported as a table"),
        ("select * from identifier(:t) t", "not supported as a table"),
        ("select * from stream(orders)", "not supported as a table"),
        ('select * from public."orders"', "cannot determine"),
        ('select * from "orders"', "in backticks"),
        ("select * from :t", "found :"),
        ("select * from ${t}", "variable substitution"),
        ("select 1 ${t}", "variable substitution"),
        ("table orders", "the TABLE statement"),
        ("select 1 union all table orders", "the TABLE statement"),
        ("select * from f(table(orders))", "the TABLE statement"),
        ("select * from f(x => table orders)", "the TABLE statement"),
        ("from orders |> where id > 1", "the pipe operator"),
    ],
)
def test_what_says_more_than_a_name_is_refused_with_what_to_try(sql: str, what: str) -> None:
    assert what in refusal(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "insert into orders select 1",
        "with a as (select 1) insert into orders select * from a",
        "with a as (select 1) merge into orders using a on true when matched then delete",
        "from orders insert into lines select *",
        "create table x as select * from orders",
        "create temp view v as select * from orders",
        "drop table orders",
        "update orders set id = 1",
        "delete from orders",
        "truncate table orders",
        "set spark.sql.ansi.enabled = false",
        "use crm",
        "show tables",
        "describe orders",
        "explain select * from orders",
        "cache table orders",
        "refresh table orders",
        "call p()",
        "begin select 1; end",
        "execute immediate 'select 1'",
        "declare x int",
        "",
        " -- nothing\n ; ",
    ],
)
def test_what_is_not_a_query_is_refused(sql: str) -> None:
    refusal(sql)


def test_only_one_statement_is_taken_and_its_semicolons_stay() -> None:
    assert text_of("select * from orders o;; -- done") == "select * from {t0} o;; -- done"
    assert "multiple statements are not supported (line 1, column 9)" in refusal("select 1; select 2")


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("select *\nfrom orders o\nwhere (id = ", "line 3"),
        ("select m:a.b from orders", "line 1, column 11"),
        ("select 'abc", "line 1, column 8"),
        ("select `abc", "line 1, column 8"),
        ("select 1 /* abc", "line 1, column 10"),
        ("select 1 /* /* */ from lines", "line 1, column 10"),
        ("select 1) from orders", "line 1, column 9"),
        ("select * from", "line 1"),
        ("select map(1,) from orders", "the query cannot be parsed"),
        ("select " + "(" * 3000 + "1" + ")" * 3000 + " from orders", "the query cannot be parsed"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(sql: str, place: str) -> None:
    assert place in refusal(sql)


@pytest.mark.parametrize("sql", ["select * from orders, values 1, lines", "select 1 from orders on a::map<int, lines>"])
def test_a_table_on_which_the_scan_and_the_parser_disagree_is_refused(sql: str) -> None:
    refusal(sql)


def test_no_prefix_of_a_query_lets_a_table_through() -> None:
    sql = "with a as (select * from orders) select a.id, 'x' from a join public.lines l on a.id = l.id, crm.customers"
    for end in range(len(sql)):
        try:
            left = text_of(sql[:end]).format(t0="", t1="", t2="")
        except InvalidValue:
            continue
        assert "from orders" not in left
        assert "public." not in left
        assert "crm." not in left


INT = pa.int32()
INFO = pa.struct([("a", INT), ("b", pa.string())])
ROWS = {
    ("public", "orders"): pa.table(
        {
            "id": pa.array([1, 2, 3, 4], INT),
            "customer": pa.array([10, 10, 11, None], INT),
            "amount": [5.5, 7.0, 9.0, 1.0],
            "tags": [["x", "y"], [], ["x"], None],
            "info": pa.array([{"a": 1, "b": "p"}, {"a": 2, "b": "q"}, None, None], INFO),
        }
    ),
    ("public", "lines"): pa.table(
        {
            "id": pa.array([1, 2, 3, 4], INT),
            "order_id": pa.array([1, 1, 3, 9], INT),
            "qty": pa.array([2, 3, 4, 5], INT),
        }
    ),
    ("crm", "customers"): pa.table({"id": pa.array([10, 11, 12], INT), "name": ["Ada", "{Bob}", "it's"]}),
    ("crm", "orders"): pa.table({"id": pa.array([1, 3], INT), "note": ["one", "three"]}),
}
QUERIES = [
    "select * from orders",
    "select orders.*, orders.id as again from public.orders where orders.id > 1",
    (
        "select public.orders.id, public.orders.info.b, crm.customers.name from public.orders, crm.customers "
        "where public.orders.customer = crm.customers.id"
    ),
    "select o.id, c.name from orders o left join crm.customers c on o.customer = c.id",
    "select a.id, b.id from orders a join orders b on a.id < b.id",
    "select count(*) from orders join orders",
    "select id from orders where exists (select 1 from lines where lines.order_id = orders.id)",
    "select id, (select sum(qty) from lines l where l.order_id = public.orders.id) as q from public.orders",
    "select id from orders where id not in (select order_id from public.lines) and customer is distinct from 11",
    "with orders as (select * from orders where id > 1) select orders.id from orders",
    (
        "with a as (select id from orders), lines as (select id + 1 as id from a) "
        "select * from lines union all select id from public.lines"
    ),
    "with recursive r(n) as (select min(id) from orders union all select n + 1 from r where n < 5) select * from r",
    "select * from (with lines as (select 1 as one) select * from lines) x, lines",
    "(select id from orders union select id from lines) except select id from crm.customers order by 1 limit 3",
    "select id, t from orders lateral view outer explode(tags) tt as t",
    "select orders.id, u.col from orders, lateral explode(orders.tags) u",
    "select o.id, s.q from orders o join lateral (select max(qty) as q from lines where order_id = o.id) s on true",
    "select * from (select customer, id from orders) pivot (count(id) for customer in (10, 11))",
    "select * from lines unpivot (v for n in (qty, order_id))",
    "select /*+ broadcast(lines) */ orders.id from orders join lines on orders.id = lines.order_id",
    "select id, sum(amount) over w from orders window w as (partition by customer order by id)",
    "select customer, count(*) as n from orders group by all having n > 1",
    (
        "select name, '{t0} from public.orders {{}}' as `{n}`, r'\\', \"a\" from crm.customers "
        "where name like '{%}' -- }{ from x"
    ),
    "select 'it''s', 'a' 'b' from orders /* from lines /* x */ from lines */ where id = 1 ;",
    "from orders o select o.id, transform(o.tags, t -> upper(t)) as up where o.info.a = 1",
    "select * from values (1, 'a'), (2, 'b') as v(id, x) join orders using (id)",
    "select extract(year from date '2026-03-01') as y, trim(both 'x' from 'xax'), r.id from range(2) r, crm.orders",
    "select id from orders tablesample (100 percent) where orders.id = 2",
    "select * from (orders o join lines l on o.id = l.order_id) natural join (select id, note from crm.orders)",
    "select 1. from orders\xa0-- a comment that goes on \\\n from lines\n where id = 1",
]


Frames = dict[tuple[str, str], DataFrame]
Answer = tuple[list[tuple[str, str]], list[str]]
TOGETHER = 5


def answers(frames: Sequence[DataFrame]) -> list[Answer]:
    """Names and types of the columns of each, and its rows as text; a few at a time are one plan."""
    if len(frames) > TOGETHER:
        return answers(frames[:TOGETHER]) + answers(frames[TOGETHER:])
    numbered = []
    for n, frame in enumerate(frames):
        columns = frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))
        row = F.to_json(F.struct("*"), {"ignoreNullFields": "false"})
        numbered.append(columns.select(F.lit(n).alias("frame"), row.alias("row")))
    rows = reduce(DataFrame.unionAll, numbered).collect()
    return [(frame.dtypes, sorted(row[1] for row in rows if row[0] == n)) for n, frame in enumerate(frames)]


@pytest.fixture(scope="module")
def quick(few: SparkSession) -> Iterator[SparkSession]:
    """Interpreted plans: what is compared here is two plans, and not how Spark runs one."""
    with set_in(few, INTERPRETED):
        yield few


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    """The tables, each in a folder."""
    place = tmp_path_factory.mktemp("tables")
    folders = {key: place / "-".join(key) for key in ROWS}
    for key, folder in folders.items():
        folder.mkdir()
        pq.write_table(ROWS[key], folder / "rows.parquet")
    return folders


@pytest.fixture(scope="module")
def frames(quick: SparkSession, files: dict[tuple[str, str], Path]) -> Frames:
    return {key: quick.read.parquet(str(folder)) for key, folder in files.items()}


def run(spark: SparkSession, sql: str, frames: Frames) -> DataFrame:
    bound = bind(sql, frames)
    given: dict[str, Any] = {name: frames[key] for name, key in bound.tables.items()}
    return spark.sql(bound.text, **given)


@pytest.fixture(scope="module")
def bound_answers(quick: SparkSession, frames: Frames) -> dict[str, Answer]:
    """What each query answers while Spark's catalog has no such tables, so that none can be read from there."""
    return dict(zip(QUERIES, answers([run(quick, sql, frames) for sql in QUERIES]), strict=True))


@pytest.fixture(scope="module")
def users_answers(
    quick: SparkSession, files: dict[tuple[str, str], Path], bound_answers: dict[str, Answer]
) -> Iterator[dict[str, Answer]]:
    """What the user's own text answers on real tables of these names and rows, made after the bound answers."""
    before = quick.catalog.currentDatabase()
    for schema in ("public", "crm"):
        quick.sql(f"create database {schema} location '{files['public', 'orders'].parent / schema}'")
    for (schema, table), folder in files.items():
        quick.sql(f"create table {schema}.{table} using parquet location '{folder}'")
    quick.catalog.setCurrentDatabase("public")
    yield dict(zip(QUERIES, answers([quick.sql(sql) for sql in QUERIES]), strict=True))
    quick.catalog.setCurrentDatabase(before)
    for schema in ("public", "crm"):
        quick.sql(f"drop database {schema} cascade")


@pytest.mark.full
@pytest.mark.spark
@pytest.mark.parametrize("sql", QUERIES)
def test_a_bound_query_answers_as_the_users_text_on_real_tables(
    sql: str, bound_answers: dict[str, Answer], users_answers: dict[str, Answer]
) -> None:
    """Names, types and rows are the same for each of these queries; they are asked a few at a time."""
    assert bound_answers[sql] == users_answers[sql]


@pytest.mark.spark
def test_a_table_of_any_name_answers_as_a_view(quick: SparkSession, frames: Frames) -> None:
    lines = frames["public", "lines"]
    asked = []
    for name in ("Odd.Name", "a`b", "it's {0} 100%", "größe 😀", "select", "_pyspark"):
        quoted = "`" + name.replace("`", "``") + "`"
        asked.append(
            run(quick, f"select {quoted}.*, public.{quoted}.id + 1 as n from{quoted}", {("public", name): lines})
        )
    view, *found = answers([lines.selectExpr("*", "id + 1 as n"), *asked])
    assert len(view[1]) == 4
    assert found == [view] * len(asked)


@pytest.mark.spark
def test_parameters_are_still_bound(quick: SparkSession, frames: Frames) -> None:
    orders = frames["public", "orders"]
    named = bind("select id from orders where id = :id", frames)
    by_place = bind("select id from orders where id = ?", frames)
    asked = [quick.sql(named.text, {"id": 2}, t0=orders), quick.sql(by_place.text, [3], t0=orders)]
    assert [rows for _, rows in answers(asked)] == [['{"c0":2}'], ['{"c0":3}']]


def test_the_connect_formatter_takes_the_same_text() -> None:
    formatter = pytest.importorskip("pyspark.sql.connect.sql_formatter").SQLStringFormatter(cast("SparkSession", None))
    connect = pytest.importorskip("pyspark.sql.connect.dataframe").DataFrame
    frame = connect.__new__(connect)
    bound = text_of("select '{x}', orders.id from public.orders, orders o")
    text = formatter.format(bound, t0=frame)
    [(_, view)] = formatter._temp_views
    assert text == f"select '{{x}}', orders.id from {view} AS `orders`, {view} o"
