"""The types that the mirror maps, with their extreme values, and the ways in which both languages can compare them.

A mirrored column has the type of docs/reference/types.md, and a statement has the meaning of Spark SQL. A `View` is an
expression for a column that means the same in both languages. Where the languages differ, the view of PostgreSQL is
written to mean what the mirror's column means, or the construct is left out:

- text is ordered by bytes in Spark SQL: PostgreSQL's side says `collate "C"`.
- char(n) is text with its blanks in the mirror: on PostgreSQL's side it is `rpad(c::text, n)`. Equality needs no such
  help if literals have all n characters.
- numeric without limits, or with more than 38 digits, is text in the mirror: on PostgreSQL's side it is `c::text`, so
  1.0 and 1.00 differ; `cast(c as decimal(38, 10))` compares as a number. timetz, interval, json, jsonb and all types
  that docs/reference/types.md does not name are text in the same way; enums are compared, and sorted, by their labels.
- time and uuid have the same order as their text.
- oid is bigint, so that -1 is no oid.
- arrays are compared by = and <> only: PostgreSQL sorts NULL elements last, Spark SQL first. Subscripts start at 1 in
  PostgreSQL and at 0 in `get`.
- decimals are compared with decimals as long as the digits of both fit into 38 places: Spark SQL rounds beyond that.
- values that have text beside the column (docs/reference/types.md) are left out by a condition on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

DECIMAL_DIGITS = 38


@dataclass(frozen=True, slots=True)
class Sql:
    """A fragment of SQL, as Spark SQL and as PostgreSQL spell it."""

    spark: str
    postgres: str

    @staticmethod
    def same(text: str) -> Sql:
        return Sql(text, text)

    @staticmethod
    def of(template: str, *parts: Sql) -> Sql:
        return Sql(template.format(*(p.spark for p in parts)), template.format(*(p.postgres for p in parts)))


@dataclass(frozen=True, slots=True)
class View:
    """An expression for a column that both languages compare alike: views of one family with each other.

    `spell` gives literals, None for a value that has none. `digits` are those of a decimal before and after the point.
    """

    family: str
    read: Callable[[Sql], Sql]
    spell: Callable[[str], Sql | None]
    ordered: bool = True
    digits: tuple[int, int] | None = None

    def compares_with(self, other: View) -> bool:
        if self.family != other.family:
            return False
        if self.digits is None or other.digits is None:
            return True
        return sum(map(max, self.digits, other.digits)) <= DECIMAL_DIGITS


@dataclass(frozen=True, slots=True)
class Kind:
    """A type: its extreme values, as many close values as one likes, and values that the mirror has text for.

    `typed` is PostgreSQL's condition for values that are not such ones, `element` what an array has in it. `odd` are
    values that bounds and dictionaries of files may get wrong.
    """

    type: str
    pool: tuple[str, ...]
    near: Callable[[int], str]
    views: tuple[View, ...]
    strange: tuple[str, ...] = ()
    typed: str = ""
    can_be_key: bool = False
    can_be_large: bool = False
    setup: str = ""
    element: tuple[str, View] | None = None
    odd: tuple[str, ...] = ()


def itself(column: Sql) -> Sql:
    return column


def as_text(cast: str, column: Sql) -> Sql:
    return Sql(column.spark, f'({cast.format(column.postgres)}) collate "C"')


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def spark_text(text: str) -> str:
    """A literal of Spark SQL, which has escapes as C has them."""
    plain = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + "".join(c if c >= " " and c != "\x7f" else f"\\u{ord(c):04x}" for c in plain) + "'"


def text_literal(value: str) -> Sql:
    return Sql(spark_text(value), quoted(value))


def typed_literal(spark: str, postgres: str, value: str) -> Sql:
    return Sql(f"cast({quoted(value)} as {spark})", f"{quoted(value)}::{postgres}")


def number(value: str) -> Sql | None:
    return Sql.same(value) if value.lstrip("-").replace(".", "", 1).isdigit() else None


def decimal_literal(digits: tuple[int, int], value: str) -> Sql | None:
    """A number as it is, if Spark SQL compares it with such a column without rounding."""
    whole, _, fraction = value.lstrip("-").partition(".")
    fits = max(len(whole), digits[0]) + max(len(fraction), digits[1]) <= DECIMAL_DIGITS
    return number(value) if fits and len(whole) + len(fraction) <= DECIMAL_DIGITS else None


def texts(cast: str = "{}::text") -> View:
    return View("text", partial(as_text, cast), text_literal)


def integer(type_: str, low: int, high: int, read: Callable[[Sql], Sql] = itself) -> Kind:
    pool = tuple(str(n) for n in {low, high, low + 1, high - 1, 0, 1, 100} if low <= n <= high)
    view = View("integer", read, number)
    return Kind(type_, pool, lambda n: str(n - 20 if low < 0 else n), (view,), can_be_key=True)


def floating(type_: str, spark: str, extremes: tuple[str, ...]) -> Kind:
    pool = ("NaN", "-0", "0", "Infinity", "-Infinity", "1", "0.1", "1e15", *extremes)
    typed = View("float", itself, partial(typed_literal, spark, type_))
    return Kind(
        type_, pool, lambda n: str(n / 2), (typed, View("float", itself, number)), can_be_key=True, odd=("NaN", "-0")
    )


def scaled(units: int, scale: int) -> str:
    """A number of so many units of its last decimal place."""
    digits = f"{abs(units):0{scale + 1}}"
    point = len(digits) - scale
    return f"{'-' * (units < 0)}{digits[:point]}{'.' * bool(scale)}{digits[point:]}"


def decimal_pool(precision: int, scale: int) -> tuple[str, ...]:
    units = {0, 1, 7, 10**scale, 10**precision - 1, 10 ** (precision - 1), 10 ** (precision // 2)}
    return tuple(scaled(sign * n, scale) for n in sorted(units) if n < 10**precision for sign in (1, -1))


def decimals(precision: int, scale: int) -> Kind:
    type_ = f"numeric({precision},{scale})"
    digits = precision - scale, scale
    view = View("decimal", itself, partial(decimal_literal, digits), digits=digits)
    cast = View("decimal", itself, partial(typed_literal, f"decimal({precision},{scale})", type_), digits=digits)
    return Kind(
        type_,
        decimal_pool(precision, scale),
        lambda n: scaled(n % 10**precision, scale),
        (view, cast),
        ("NaN",),
        "{} <> 'NaN'",
        can_be_key=precision > 8,
    )


def numeric_text(type_: str, *pool: str, tame: bool = False) -> Kind:
    """A numeric that is text in the mirror; a tame one also fits into a DECIMAL(38,10)."""
    views: tuple[View, ...] = (texts(),)
    if tame:
        spark, postgres = "decimal(38,10)", "numeric(38,10)"
        number_of = View(
            "decimal",
            lambda c: Sql(f"cast({c.spark} as {spark})", f"{c.postgres}::{postgres}"),
            partial(typed_literal, spark, postgres),
            digits=(28, 10),
        )
        views = (*views, number_of)
    return Kind(type_, pool, lambda n: f"{n}00" if "-" in type_ else str(n), views, can_be_key=type_ == "numeric")


PREFIX = "x" * 64
TEXTS = (
    *("", " ", "a", "a ", "a  ", "A", "ab", "b", "B", "ä", "a\u0308", "€", "😀", "\U0010ffff", "\ue000", "\ufeff"),
    *("\x01", "\x7f", "a\x01", "\t", "line\nbreak", "'", '"', "\\", "\\n", "%", "_", "a%", "NULL", "0", "00", "NaN"),
    *(
        PREFIX,
        PREFIX + "a",
        PREFIX + "b",
        PREFIX + " ",
        PREFIX[:-1],
        "é" * 40,
        "é" * 40 + "z",
        "\uffff" * 30,
        "z" * 5000,
    ),
)


def character(type_: str, most: int, cast: str = "{}::text") -> Kind:
    pool = tuple(text for text in TEXTS if len(text.encode()) <= most)
    native = View("plain text", itself, text_literal, ordered=False)
    views = (texts(cast), native) if type_ not in ('"char"', "name") else (texts(cast),)  # UNION makes a name of both
    return Kind(type_, pool, lambda n: f"k{n:05}"[:most], views, can_be_key=most > 8, can_be_large=type_ == "text")


def blank_padded(length: int) -> Kind:
    """char(n): literals have all n characters, with which equality means the same."""
    pool = tuple(text for text in TEXTS if len(text) <= length)
    whole = partial(typed_padded, length)
    return Kind(
        f"char({length})",
        pool,
        lambda n: f"k{n:05}"[:length],
        (
            View("text", partial(as_text, f"rpad({{}}::text, {length})"), whole),
            View(f"char {length}", itself, lambda v: text_literal(v.ljust(length)), ordered=False),
        ),
        can_be_key=length > 6,
    )


def typed_padded(length: int, value: str) -> Sql:
    return text_literal(value.ljust(length))


def textual(type_: str, *pool: str, cast: str = "{}::text", native: bool = False, setup: str = "") -> Kind:
    """A type that is text in the mirror; a `native` one has the order of its text."""
    views: tuple[View, ...] = (texts(cast),)
    if native:
        views = (*views, View(type_, itself, lambda v: Sql(quoted(v), f"{quoted(v)}::{type_}")))
    large = type_ in {"json", "jsonb"}
    return Kind(type_, pool, lambda n: pool[n % len(pool)], views, can_be_large=large, setup=setup)


def bytes_literal(value: str) -> Sql:
    return Sql(f"X'{value[2:]}'", f"{quoted(value)}::bytea")


def moment_literal(spark: str, postgres: str, value: str) -> Sql:
    return Sql(f"{spark}{quoted(value.replace('+00', '+00:00'))}", f"{postgres} {quoted(value)}")


def moments(
    type_: str, spark: str, pool: tuple[str, ...], near: Callable[[int], str], strange: tuple[str, ...]
) -> Kind:
    view = View(type_, itself, partial(moment_literal, spark, type_.partition("(")[0]))
    end = "10000-01-01 00:00:00+00" if type_ == "timestamptz" else "10000-01-01"
    start = end.replace("10000", "0001")
    return Kind(type_, pool, near, (view,), strange, f"({{0}} >= '{start}' and {{0}} < '{end}')", can_be_key=True)


ZONED = "+00"
DATES = (
    *("0001-01-01", "0001-01-02", "9999-12-31", "9999-12-30", "1969-12-31", "1970-01-01", "1582-10-04", "1582-10-10"),
    *("1582-10-15", "1900-02-28", "1900-03-01", "2000-02-29", "2024-12-31"),
)
CLOCKS = ("00:00:00", "23:59:59.999999", "12:34:56.789", "00:00:00.000001")
TIMESTAMPS = (*(f"{day} {CLOCKS[n % 4]}" for n, day in enumerate(DATES)), "9999-12-31 23:59:59.999999")
STRANGE_DATES = ("infinity", "-infinity", "0001-12-31 BC", "10000-01-01", "5874897-12-31")
STRANGE_TIMES = ("infinity", "-infinity", "0001-12-31 23:59:59.999999 BC", "10000-01-01 00:00:00")


def near_day(n: int) -> str:
    return f"2020-{n // 28 % 12 + 1:02}-{n % 28 + 1:02}"


def near_time(n: int) -> str:
    return f"2020-01-{n // 1440 % 28 + 1:02} {n // 60 % 24:02}:{n % 60:02}:00"


def element_text(value: str | None) -> str:
    return "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def array_of(element: Kind, spark: str, *strange: str, view: int = 0) -> Kind:
    """Arrays of a type: compared whole by equality, and by their elements as these are."""
    pool = element.pool
    lists: list[tuple[str | None, ...]] = [(), (None,), *((value,) for value in pool)]
    lists += [(pool[n], None, pool[-1 - n]) for n in range(len(pool))] + [tuple(pool), tuple(pool[:2])]
    known = {"{" + ",".join(map(element_text, values)) + "}": values for values in lists}
    inner = element.views[view]
    type_ = f"{element.type}[]"
    is_text = inner.family == "text"

    def spell(value: str) -> Sql | None:
        parts = [Sql.same("null") if each is None else inner.spell(each) for each in known.get(value, ("",))]
        if value not in known or any(part is None for part in parts):
            return None
        elements = ", ".join(part.spark for part in parts if part is not None)
        return Sql(f"cast(array({elements}) as array<{spark}>)", f"{quoted(value)}::{'text[]' if is_text else type_}")

    def whole(column: Sql) -> Sql:
        return Sql(column.spark, f"{column.postgres}::text[]" if is_text else column.postgres)

    def first(column: Sql) -> Sql:
        return inner.read(Sql(f"get({column.spark}, 0)", f"({column.postgres})[1]"))

    views = (
        View(f"array of {type_}", whole, spell, ordered=False),
        View("integer", lambda c: Sql.of("cardinality({})", c), lambda v: Sql.same(str(len(known.get(v, ()))))),
        View(
            inner.family,
            first,
            lambda v: next((inner.spell(each) for each in known.get(v, ()) if each is not None), None),
            inner.ordered,
            inner.digits,
        ),
    )
    typed = "(cardinality({0}) = 0 or (array_ndims({0}) = 1 and array_lower({0}, 1) = 1))"
    names = tuple(known)
    return Kind(type_, names, lambda n: names[n % len(names)], views, strange, typed, element=(spark, inner))


def domain(name: str, base: Kind) -> Kind:
    return Kind(
        name, base.pool, base.near, base.views, base.strange, base.typed, setup=f"create domain {name} as {base.type}"
    )


LABELS = ("sad", "ok", "Happy", "a'b", "zß", "")
INTEGERS = (
    integer("int2", -(2**15), 2**15 - 1),
    integer("int4", -(2**31), 2**31 - 1),
    integer("int8", -(2**63), 2**63 - 1),
    integer("oid", 0, 2**32 - 1, lambda c: Sql(c.spark, f"{c.postgres}::int8")),
)
FLOATS = (
    floating("float4", "float", ("1e-45", "3.4028235e38", "-3.4028235e38", "16777217")),
    floating("float8", "double", ("5e-324", "1.7976931348623157e308", "-1.7976931348623157e308", "123456789012345678")),
)
DECIMALS = tuple(
    decimals(precision, scale)
    for precision, scale in (
        *((1, 0), (1, 1), (4, 4), (9, 2), (9, 9), (10, 2), (14, 2), (18, 2), (18, 18), (19, 0), (19, 19), (20, 10)),
        *((28, 6), (38, 0), (38, 10), (38, 38)),
    )
)
NUMBERS = ("0", "0.0", "0.00", "-0.00010", "1", "1.0", "1.00", "-1", "10", "123456789.123456789", "0.0000000001")
NUMERICS = (
    numeric_text("numeric", *NUMBERS, "NaN", "Infinity", "-Infinity", "1" + "0" * 40, "0." + "0" * 40 + "1"),
    numeric_text("numeric", *NUMBERS, tame=True),
    numeric_text("numeric(39,0)", "0", "9" * 39, "-" + "9" * 39, "NaN"),
    numeric_text("numeric(50,20)", "0", "0." + "0" * 19 + "1", "9" * 30 + "." + "9" * 20),
    numeric_text("numeric(5,-2)", "0", "100", "-12300", "9999900"),
)
CHARACTERS = (
    character("text", 10**6),
    character("varchar", 10**6),
    character("varchar(10)", 10),
    character("varchar(40)", 40),
    character("name", 63),
    character('"char"', 1),
    blank_padded(1),
    blank_padded(5),
    blank_padded(70),
)
BYTEA = Kind(
    "bytea",
    ("\\x", "\\x00", "\\x0000", "\\x00ff", "\\x7f", "\\x80", "\\xff", "\\x" + "ab" * 64, "\\x" + "ab" * 64 + "00"),
    lambda n: f"\\x{n:06x}",
    (View("bytes", itself, bytes_literal),),
    can_be_key=True,
    can_be_large=True,
)
BOOL = Kind(
    "bool",
    ("t", "f"),
    lambda n: "tf"[n % 2],
    (View("bool", itself, lambda v: Sql.same("true" if v == "t" else "false")),),
)
MOMENTS = (
    moments("date", "date", DATES, near_day, STRANGE_DATES),
    moments("timestamp", "timestamp_ntz", TIMESTAMPS, near_time, STRANGE_TIMES),
    moments("timestamp(3)", "timestamp_ntz", TIMESTAMPS[:-1:2], near_time, STRANGE_TIMES),
    moments(
        "timestamptz",
        "timestamp",
        tuple(each + ZONED for each in TIMESTAMPS),
        lambda n: near_time(n) + ZONED,
        tuple(each if "inf" in each else each.replace(" BC", "+00 BC") for each in STRANGE_TIMES),
    ),
)
UUIDS = (
    "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
    "0" * 8 + "-0000" * 3 + "-" + "0" * 12,
    "f" * 8 + "-ffff" * 3 + "-" + "f" * 12,
)
UUID = replace(
    textual("uuid", *UUIDS, native=True), near=lambda n: f"00000000-0000-4000-8000-{n:012x}", can_be_key=True
)
TEXTUAL = (
    textual(
        "time", "00:00:00", "24:00:00", "12:34:56.000001", "12:34:56.5", "12:34:56", "23:59:59.999999", native=True
    ),
    textual("timetz", "00:00:00+00", "24:00:00-15:59:59", "12:34:56.7+05:30", "01:02:03-08", "09:02:03+00"),
    textual(
        "interval", "00:00:00", "1 year 2 mons 3 days 04:05:06.789", "1 mon", "30 days", "1 mon -1 days", "100:00:00"
    ),
    textual("json", '{"a": 1}', " [1,  2] ", '"ü"', "null", "1.0", "1.00", "[]"),
    textual("jsonb", '{"a": 1}', "[1, 2]", '"ü"', "null", "1.0", "1.00", "[]"),
    textual("inet", "10.0.0.1/8", "::1", "10.0.0.1", cast="case when {0} is not null then format('%s', {0}) end"),
    textual("bit(3)", "101", "000", "111"),
    textual("int4range", "[1,10)", "empty", "(,)", "[-5,3)"),
    textual("pg_lsn", "16/B374D848", "0/0"),
)
ENUM = Kind(
    "mood",
    LABELS,
    lambda n: LABELS[n % len(LABELS)],
    (texts(), View("mood", itself, text_literal, ordered=False)),
    setup=f"create type mood as enum ({', '.join(map(quoted, LABELS))})",
)
DOMAINS = (
    domain("whole", INTEGERS[1]),
    domain("amount", DECIMALS[11]),
    domain("words", CHARACTERS[0]),
    domain("ratio", FLOATS[1]),
)
ARRAYS = (
    array_of(INTEGERS[1], "int", "{{1,2},{3,4}}", "[2:3]={1,2}"),
    array_of(FLOATS[1], "double", "{{NaN}}", "[0:0]={-0}"),
    array_of(CHARACTERS[0], "string", "{{a},{b}}"),
    array_of(NUMERICS[0], "string", "{{NaN}}"),
    array_of(DECIMALS[5], "decimal(10,2)", "{{1}}", view=1),
    array_of(BOOL, "boolean", "{{t}}"),
    array_of(MOMENTS[0], "date", "{{2020-01-01}}"),
    array_of(MOMENTS[3], "timestamp", "[5:5]={2020-01-01 00:00:00+00}"),
    array_of(BYTEA, "binary"),
    array_of(UUID, "string"),
)
KINDS = (
    *(*INTEGERS, *FLOATS, *FLOATS, *DECIMALS, *NUMERICS, *CHARACTERS, BYTEA, BOOL, *MOMENTS, UUID, *TEXTUAL, ENUM),
    *(*DOMAINS, *ARRAYS),
)
FEW_KINDS = (
    *(INTEGERS[1], INTEGERS[2], *FLOATS, *FLOATS, DECIMALS[3], DECIMALS[11], DECIMALS[14], *NUMERICS[:2]),
    *(CHARACTERS[0], CHARACTERS[2], CHARACTERS[7], BYTEA, BOOL, *MOMENTS[:2], MOMENTS[3], UUID, TEXTUAL[0], ENUM),
    *(DOMAINS[1], ARRAYS[0], ARRAYS[1]),
)
