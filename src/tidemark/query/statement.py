"""The user's SQL, with each table of the mirror replaced by a placeholder and every other byte left as it was.

    select o.id from public.orders o, crm.customers   ->   select o.id from {t0} o, {t1} AS `customers`

Nothing is generated from a syntax tree, because a generator changes meanings: the text is spliced. Where the tables
are is found twice, by a scan of the tokens that follows Spark's grammar (SqlBaseLexer.g4, SqlBaseParser.g4) and by
sqlglot. Only a query on which both agree is bound, so no name reaches Spark's own catalog, where it might be found and
answer with some other table's rows. sqlglot reads a masked copy of the text, of the same length, in which literals,
comments, hints and quoted names are plain: what Spark takes for a literal is decided here alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from tidemark.errors import InvalidValue

TableKey = tuple[str, str]

_SPACE = " \\t\\n\\f\\r\\x0b\\xa0\\u1680\\u2000-\\u200a\\u2028\\u202f\\u205f\\u3000"
_TOKEN = re.compile(
    rf"""(?P<space>[{_SPACE}]+|--(?:\\\n|[^\r\n])*)
    |(?P<string>'(?:[^'\\]|\\.|'')*'|[rR]'[^']*'|[rR]"[^"]*"|"(?:[^"\\]|\\.|"")*"|(?P<tag>\$[A-Za-z]*\$).*?(?P=tag))
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<number>(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[fFdD]|[bB][dD])?(?![A-Za-z0-9_]))
    |(?P<word>\w+)
    |(?P<symbol>\|>|/\*\+|\*/|\$\{{|.)""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_MARK = re.compile(r"/\*|\*/")
_KINDS = ("space", "string", "quoted", "number", "word", "symbol")
_QUERY_STARTS = {"SELECT", "WITH", "VALUES", "FROM", "("}
_FROM_ENDS = {
    *("SELECT", "WHERE", "GROUP", "HAVING", "WINDOW", "QUALIFY", "ORDER", "CLUSTER", "DISTRIBUTE", "SORT"),
    *("LIMIT", "OFFSET", "UNION", "EXCEPT", "INTERSECT", "MINUS", "SETMINUS"),
}
_NOT_AN_ALIAS = _FROM_ENDS | {
    *("JOIN", "CROSS", "INNER", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI", "NATURAL", "LATERAL", "ON", "USING"),
    *("PIVOT", "UNPIVOT"),
}
_FROM_AS_ARGUMENT = {"EXTRACT", "TRIM", "SUBSTR", "SUBSTRING", "OVERLAY"}
_MOMENTS = {"VERSION", "SYSTEM_VERSION", "TIMESTAMP", "SYSTEM_TIME"}
_FILE_FORMATS = {"parquet", "delta", "iceberg", "orc", "avro", "csv", "json", "text", "xml", "binaryfile"}
_USE_AT = "ask for the moment with .at(...), which holds for every table of the query"


@dataclass(frozen=True, slots=True)
class Statement:
    """A text for `spark.sql(text, **frames)` and what each placeholder stands for.

    Where there are tables, the text is a format string and the user's own braces are doubled. Where there are none it
    is the user's text as it was, because Spark formats only when frames are given.
    """

    text: str
    tables: Mapping[str, TableKey]


@dataclass(frozen=True, slots=True)
class _Token:
    """A piece of the text that Spark's parser sees. `keyword` is empty where the word can only be a name."""

    kind: str
    start: int
    end: int
    text: str
    keyword: str

    @property
    def is_name(self) -> bool:
        return self.kind == "quoted" or (self.kind == "word" and not self.text.isdigit())

    @property
    def name(self) -> str:
        return self.text[1:-1].replace("``", "`") if self.kind == "quoted" else self.text


@dataclass(frozen=True, slots=True)
class _Reference:
    """A name where a table must stand: its parts, its alias if it has one, and where one would be added."""

    parts: tuple[_Token, ...]
    alias: _Token | None
    alias_at: int

    @property
    def start(self) -> int:
        return self.parts[0].start

    @property
    def end(self) -> int:
        return self.parts[-1].end

    @property
    def known_as(self) -> str:
        """What columns are qualified with."""
        return (self.alias or self.parts[-1]).name

    def __str__(self) -> str:
        return ".".join(part.text for part in self.parts)


def bind(sql: str, known: Collection[TableKey], search_path: Sequence[str] = ("public",)) -> Statement:
    """Find each table of one query among those of the mirror, and put a placeholder in its place.

    A table that is not known, a name with two meanings, and a text in which a table could be overlooked are refused.
    """
    tokens, masked = _read(sql)
    _check_is_one_query(sql, tokens)
    references = _Finder(sql, tokens).references()
    for reference in references:
        _check_is_plain(sql, tokens, reference)
    nodes = _agreed(sql, references, _parse(sql, masked))
    names = {token.start: token.name for token in tokens if token.is_name}
    catalog = _Catalog(sql, tuple(known), tuple(search_path))
    bound = {
        reference.start: catalog.find(reference)
        for reference in references
        if not _is_cte(reference, nodes[reference.start], names)
    }
    return _spliced(sql, references, bound, _Mentions(sql, references, bound, nodes, names, catalog).edits())


# --- reading ---------------------------------------------------------------------------------------------------------


def _read(sql: str) -> tuple[list[_Token], str]:
    """The tokens as Spark's lexer has them, without hints, and the masked text that sqlglot reads."""
    tokens: list[_Token] = []
    masked: list[str] = []
    in_hint = False
    for kind, start, end in _lexemes(sql):
        text = sql[start:end]
        opens, closes = text == "/*+", in_hint and text == "*/"
        if in_hint or opens or kind == "space":
            masked.append(_blank(text))
        else:
            keyword = text.upper() if kind == "word" and not (tokens and tokens[-1].text == ".") else ""
            tokens.append(_Token(kind, start, end, text, keyword))
            masked.append(_mask(kind, text))
        if in_hint and text.upper() in {"FROM", "TABLE"}:
            _refuse(sql, start, "a hint holds a query", "name only tables and numbers in hints")
        in_hint = (in_hint or opens) and not closes
    return tokens, "".join(masked)


def _lexemes(sql: str) -> Iterator[tuple[str, int, int]]:
    """Kind, start and end of every piece of the text, spaces and comments included."""
    at = 0
    while at < len(sql):
        if sql.startswith("/*", at) and not sql.startswith("/*+", at):
            kind, end = "space", _comment_end(sql, at)
        else:
            match = _TOKEN.match(sql, at)
            assert match is not None  # noqa: S101  the last alternative takes any character
            kind, end = next(name for name in _KINDS if match[name]), match.end()
        if kind == "symbol" and sql[at] in "'\"`":
            _refuse(sql, at, f"the quote {sql[at]} is not closed", "close it, or double it inside a literal")
        if sql.startswith("${", at) and kind == "symbol":
            _refuse(sql, at, "a variable ${...} could stand for anything", "use a parameter marker such as :name")
        yield kind, at, end
        at = end


def _comment_end(sql: str, start: int) -> int:
    """Where a bracketed comment ends. They nest, but not around what looks like a hint."""
    depth = 0
    for mark in _COMMENT_MARK.finditer(sql, start):
        if sql.startswith("/*+", mark.start()):
            _refuse(sql, mark.start(), "a comment holds a hint", "take the + out of it")
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    return _refuse(sql, start, "a comment is not closed", "end it with */")


def _blank(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _mask(kind: str, text: str) -> str:
    """Plain text of the same length that parses as the same kind of token."""
    if kind == "string":
        return "'" + re.sub(r"['\"\\]|[^\x20-\x7e\n]", "x", text[1:-1]) + "'"
    if kind == "quoted":
        return "`" + "q" * (len(text) - 2) + "`"
    return " " if text == ";" else re.sub(r"[^\x20-\x7e]", "q", text)


def _parse(sql: str, masked: str) -> exp.Expr:
    """sqlglot's tree of the masked text, which must be of a query."""
    hint = "Spark may accept this; rewrite the part named, so that its tables can be found"
    try:
        trees = sqlglot.parse(masked, dialect="spark")
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        line, column = int(first.get("line") or 1), int(first.get("col") or 0)
        near = sql.split("\n")[line - 1][max(column - 30, 0) : column]
        what = f"cannot read the query at line {line}, column {column}, after {near!r}: {first.get('description')}"
        raise InvalidValue(what, hint) from error
    except Exception as error:  # a parser that stumbles (IndexError on `map(1,)`) has not found the tables either
        raise InvalidValue(f"cannot read the query: {type(error).__name__}: {error}", hint) from error
    if len(trees) != 1 or not isinstance(trees[0], (exp.Query, exp.Values)):
        raise InvalidValue("this is not a query", "the mirror is read only: write SELECT, WITH or VALUES")
    return trees[0]


def _refuse(sql: str, at: int, what: str, hint: str) -> NoReturn:
    line, column = sql.count("\n", 0, at) + 1, at - sql.rfind("\n", 0, at)
    raise InvalidValue(f"{what} (line {line}, column {column})", hint)


def _check_is_one_query(sql: str, tokens: Sequence[_Token]) -> None:
    """One statement, that begins as queries do. What it ends as is for the parser to say."""
    body = [token for token in tokens if token.text != ";"]
    if not body:
        raise InvalidValue("there is no query in this text", "write a SELECT")
    for token in tokens:
        if token.text == ";" and token.start < body[-1].start:
            _refuse(sql, token.start, "a second statement follows", "run one statement at a time")
    first = body[0]
    if first.keyword == "TABLE":
        _refuse_table_keyword(sql, first)
    if (first.keyword or first.text) not in _QUERY_STARTS:
        hint = "the mirror is read only: write SELECT, WITH or VALUES"
        _refuse(sql, first.start, f"{first.text[:40]} does not begin a query", hint)


def _refuse_table_keyword(sql: str, token: _Token) -> NoReturn:
    hint = "write select * from name, TABLE (select * from name) as an argument, or `table` for a name"
    _refuse(sql, token.start, "TABLE name is not supported", hint)


# --- where the tables are ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Level:
    """What is open between two brackets: a FROM clause, a VALUES list, a place where a table must come next."""

    opener: str = ""
    in_from: bool = False
    expecting: bool = False
    in_values: bool = False
    in_select: bool = False


@dataclass(slots=True)
class _Finder:
    """A scan of the tokens for names where Spark's grammar has a relation. It fails closed: in doubt it refuses."""

    sql: str
    tokens: Sequence[_Token]
    levels: list[_Level] = field(default_factory=lambda: [_Level()])
    found: list[_Reference] = field(default_factory=list)

    def references(self) -> list[_Reference]:
        at = 0
        while at < len(self.tokens):
            at = self._relation(at) if self.levels[-1].expecting else self._other(at)
        if len(self.levels) > 1 or self.levels[0].expecting:
            _refuse(self.sql, len(self.sql), "the query ends too early", "complete it")
        return self.found

    def _at(self, at: int) -> _Token:
        end = len(self.sql)
        return self.tokens[at] if 0 <= at < len(self.tokens) else _Token("end", end, end, "", "")

    def _relation(self, at: int) -> int:
        """Take what stands where a table must."""
        token, level = self._at(at), self.levels[-1]
        if token.text == "(":
            self.levels.append(_Level(in_from=True, expecting=True))
            level.expecting = False
            return at + 1
        if token.keyword == "LATERAL":
            return at + 1
        level.expecting = False
        if token.keyword in {"SELECT", "WITH", "FROM", "TABLE"}:
            level.in_from = False
            return self._other(at)
        if token.keyword == "VALUES":
            level.in_values = True
            return at + 1
        return self._name(at)

    def _name(self, at: int) -> int:
        """Take a name: of a table function, which is left alone, or of a table."""
        if not self._at(at).is_name:
            hint = "write a name, in `backticks` if it needs quotes"
            _refuse(self.sql, self._at(at).start, f"a table cannot be {self._at(at).text[:40] or 'missing'}", hint)
        parts = [self._at(at)]
        while self._at(at + 1).text == "." and self._at(at + 2).is_name:
            at += 2
            parts.append(self._at(at))
        if self._at(at + 1).text != "(":
            self.found.append(self._reference(tuple(parts), at + 1))
        elif any(part.kind == "word" and part.text.upper() in {"IDENTIFIER", "STREAM"} for part in parts):
            _refuse(self.sql, parts[0].start, f"{parts[-1].text}(...) hides which table is read", "write its name")
        return at + 1

    def _reference(self, parts: tuple[_Token, ...], at: int) -> _Reference:
        """Look for an alias, which in Spark comes after TABLESAMPLE."""
        if self._at(at).keyword == "TABLESAMPLE":
            while self._at(at).text not in {"(", ""}:
                at += 1
            at = self._after_bracket(at)
            at = self._after_bracket(at + 1) if self._at(at).keyword == "REPEATABLE" else at
        token = self._at(at)
        if token.keyword == "AS":
            return _Reference(parts, self._at(at + 1), token.start)
        is_alias = token.is_name and token.keyword not in _NOT_AN_ALIAS
        return _Reference(parts, token if is_alias else None, self._at(at - 1).end)

    def _after_bracket(self, at: int) -> int:
        depth = 0
        while self._at(at).text:
            depth += {"(": 1, ")": -1}.get(self._at(at).text, 0)
            at += 1
            if not depth:
                break
        return at

    def _other(self, at: int) -> int:
        """Pass over a token that is no table, and note what it says about those that follow."""
        token, level = self._at(at), self.levels[-1]
        if token.text in {"(", "["}:
            self.levels.append(_Level(opener=self._at(at - 1).keyword))
        elif token.text in {")", "]"}:
            self._close(token)
        elif token.text == ",":
            level.expecting = level.in_from and (not level.in_values or self._ends_values(at + 1))
        elif token.text == "|>":
            _refuse(self.sql, token.start, "the pipe |> is not supported", "write it with SELECT and subqueries")
        elif token.keyword:
            self._keyword(at, token.keyword, level)
        return at + 1

    def _close(self, token: _Token) -> None:
        if len(self.levels) == 1:
            _refuse(self.sql, token.start, f"{token.text} closes nothing", "balance the brackets")
        self.levels.pop()

    def _ends_values(self, at: int) -> bool:
        """Whether a comma after VALUES is followed by a relation: by a name that is not a value."""
        token, after = self._at(at), self._at(at + 1)
        is_value = token.keyword in {"NULL", "TRUE", "FALSE"} or after.text == "(" or after.kind == "string"
        return token.is_name and not is_value

    def _keyword(self, at: int, keyword: str, level: _Level) -> None:
        if keyword in _FROM_ENDS or (keyword == "LATERAL" and self._at(at + 1).keyword == "VIEW"):
            level.in_from = level.in_values = False
            level.in_select |= keyword == "SELECT"
        elif keyword == "JOIN" or (keyword == "FROM" and not self._is_argument(at, level)):
            level.in_from = level.expecting = True
            level.in_values = False
        elif keyword == "TABLE":
            starts = {self._at(at + 2).keyword, self._at(at + 2).text}
            if self._at(at + 1).text != "(" or not starts & _QUERY_STARTS:
                _refuse_table_keyword(self.sql, self._at(at))
        elif keyword == "INSERT" and self._at(at + 1).keyword in {"INTO", "OVERWRITE", "WITH"}:
            _refuse(self.sql, self._at(at).start, "INSERT is not a query", "the mirror is read only")

    def _is_argument(self, at: int, level: _Level) -> bool:
        """FROM as in `extract(year from d)` and `a is distinct from b`."""
        if self._at(at - 1).keyword == "DISTINCT":
            return self._at(at - 2).keyword in {"IS", "NOT"}
        return level.opener in _FROM_AS_ARGUMENT and not level.in_select


def _check_is_plain(sql: str, tokens: Sequence[_Token], reference: _Reference) -> None:
    """Refuse what says more about a table than its name: another catalog, a moment, options."""
    if len(reference.parts) > 2:
        short = ".".join(part.text for part in reference.parts[-2:])
        _refuse(sql, reference.start, f"{reference} has more than two parts", f"write schema.table: {short}")
    after = [token for token in tokens if token.start >= reference.end][:4]
    words = [token.keyword or token.text for token in after]
    words = words[1:] if words[:1] == ["FOR"] else words
    if words[:1] == ["@"] or (words[:1] and words[0] in _MOMENTS and words[1:3] == ["AS", "OF"]):
        _refuse(sql, reference.start, f"{reference} is asked for as of a moment of its own", _USE_AT)
    if words[:2] == ["CHANGES", "FROM"]:
        _refuse(sql, reference.start, f"{reference} is asked for its changes", "read the change feed instead")
    if words[:2] == ["WITH", "("]:
        _refuse(sql, reference.start, f"{reference} has options", "a mirrored table takes none: leave them out")


def _agreed(sql: str, references: Sequence[_Reference], tree: exp.Expr) -> dict[int, exp.Table]:
    """The parser's node of each reference. The scan and the parser must have found the same ones."""
    nodes: dict[int, exp.Table] = {}
    for node in tree.find_all(exp.Table):
        if isinstance(node.this, exp.Identifier):
            nodes[min((part.meta.get("start", -1) for part in node.parts), default=-1)] = node
    scanned = {reference.start: len(reference.parts) for reference in references}
    parsed = {start: len(node.parts) for start, node in nodes.items()}
    differing = sorted(start for start, _ in scanned.items() ^ parsed.items())
    if differing:
        at = max(differing[0], 0)
        word = sql[at : at + 30].split("\n")[0]
        _refuse(sql, at, f"cannot tell whether a table is meant by: {word}", "put names in `backticks`, or rewrite it")
    return nodes


# --- what the names mean ----------------------------------------------------------------------------------------------


def _is_cte(reference: _Reference, node: exp.Table, names: Mapping[int, str]) -> bool:
    """Whether a WITH around the name defines it: earlier in the same WITH, in its own body if recursive, or outside."""
    wanted = reference.parts[0].name.lower()
    return len(reference.parts) == 1 and any(wanted == name for name in _ctes_in_scope(node, names))


def _ctes_in_scope(node: exp.Expr, names: Mapping[int, str]) -> Iterator[str]:
    inner: exp.Expr = node
    inside: exp.Expr | None = None
    while (outer := inner.parent) is not None:
        if isinstance(outer, exp.With):
            inside = inner
        else:
            with_ = outer.args.get("with_") or outer.args.get("with")
            if isinstance(with_, exp.With):
                yield from _visible(with_, inside if inner is with_ else None, names)
        inner = outer


def _visible(with_: exp.With, inside: exp.Expr | None, names: Mapping[int, str]) -> Iterator[str]:
    """The names that a WITH defines for its body, or for one of its own members."""
    for cte in with_.expressions:
        if cte is inside and not with_.args.get("recursive"):
            return
        yield names.get(cte.args["alias"].this.meta.get("start", -1), "").lower()
        if cte is inside:
            return


@dataclass(frozen=True, slots=True)
class _Catalog:
    """The tables of the mirror, and the schemas in which a name without one is looked for."""

    sql: str
    known: tuple[TableKey, ...]
    search_path: tuple[str, ...]

    def find(self, reference: _Reference) -> TableKey:
        """The one table that is meant. The exact spelling wins over one that differs in case."""
        parts = [part.name for part in reference.parts]
        groups = self.candidates(parts[0], parts[1]) if len(parts) == 2 else self._on_path(parts[0])
        for group in groups:
            if len(group) == 1:
                return group[0]
            if group:
                names = " and ".join(_spelled(key) for key in sorted(group))
                _refuse(self.sql, reference.start, f"{reference} could be {names}", "spell it as one of them")
        return self._refuse_unknown(reference, parts)

    def candidates(self, schema: str, table: str) -> list[list[TableKey]]:
        """Those spelled exactly so, then those that differ in case only."""
        folded = (schema.lower(), table.lower())
        like = [key for key in self.known if (key[0].lower(), key[1].lower()) == folded]
        return [[key for key in like if key == (schema, table)], like]

    def _on_path(self, table: str) -> list[list[TableKey]]:
        here = [[key for key in self.known if key[0] == schema] for schema in self.search_path]
        exact = [[key for key in keys if key[1] == table] for keys in here]
        return exact + [[key for key in keys if key[1].lower() == table.lower()] for keys in here]

    def _refuse_unknown(self, reference: _Reference, parts: Sequence[str]) -> NoReturn:
        if len(parts) == 2 and parts[0].lower() in _FILE_FORMATS:
            hint = "read files with spark.read, and name tables of the mirror here"
            _refuse(self.sql, reference.start, f"{reference} is a path, not a table of the mirror", hint)
        where = "" if len(parts) == 2 else f" in {', '.join(self.search_path) or 'an empty search path'}"
        message = f"the mirror has no table {reference}{where}"
        _refuse(self.sql, reference.start, message, self._suggestion(parts))

    def _suggestion(self, parts: Sequence[str]) -> str:
        """The same name in another schema, else names that look alike, else what there is."""
        same = sorted(key for key in self.known if key[1].lower() == parts[-1].lower())
        alike = get_close_matches(parts[-1].lower(), {key[1].lower() for key in self.known}, n=3)
        close = same or [key for name in alike for key in sorted(self.known) if key[1].lower() == name]
        if close:
            return " or ".join(_spelled(key) for key in close[:5])
        some = ", ".join(_spelled(key) for key in sorted(self.known)[:10])
        more = f" and {len(self.known) - 10} more" if len(self.known) > 10 else ""
        return f"one of its tables: {some}{more}" if some else "mirror a table first: there is none yet"


def _spelled(key: TableKey) -> str:
    return ".".join(part if re.fullmatch("[a-z_][a-z0-9_]*", part) else _quoted(part) for part in key)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# --- columns qualified with a schema ----------------------------------------------------------------------------------

Edit = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class _Mentions:
    """Columns written `schema.table.column`, which must follow their table to its alias.

    A table that has an alias of its own cannot be mentioned so; what Spark makes of that is left to Spark. Where the
    alias that was added would mean another relation, the mention is refused.
    """

    sql: str
    references: Sequence[_Reference]
    bound: Mapping[int, TableKey]
    nodes: Mapping[int, exp.Table]
    names: Mapping[int, str]
    catalog: _Catalog

    def edits(self) -> Iterator[Edit]:
        roots = {id(node.root()): node.root() for node in self.nodes.values()}
        for tree in roots.values():
            for column in tree.find_all(exp.Column):
                starts = sorted(part.meta["start"] for part in column.parts if "start" in part.meta)
                if len(starts) >= 2 and len(column.parts) >= 3:
                    yield from self._edit(column, starts[0], starts[1])

    def _edit(self, column: exp.Column, first: int, second: int) -> Iterator[Edit]:
        schema, table = self.names.get(first, ""), self.names.get(second, "")
        key = next((group[0] for group in self.catalog.candidates(schema, table) if len(group) == 1), None)
        scope, others = column.parent_select, 0
        while key is not None and scope is not None:
            inside = [reference for reference in self._sources(scope) if self._is_bare(reference, key)]
            others += sum(name == table.lower() for name in self._other_names(scope, inside))
            if inside and others:
                hint = f"give {_spelled(key)} an alias, and use it"
                _refuse(self.sql, first, f"{schema}.{table} cannot be told from another {table}", hint)
            if inside:
                end = self._end(second)
                yield first, end, _quoted(inside[0].known_as) + _comments(self.sql, first, end)
                return
            scope = scope.parent_select

    def _is_bare(self, reference: _Reference, key: TableKey) -> bool:
        return reference.alias is None and self.bound.get(reference.start) == key

    def _sources(self, scope: exp.Expr) -> list[_Reference]:
        return [reference for reference in self.references if self.nodes[reference.start].parent_select is scope]

    def _other_names(self, scope: exp.Expr, inside: Sequence[_Reference]) -> Iterator[str]:
        """What the relations of a SELECT are called, without those in hand."""
        yield from (reference.known_as.lower() for reference in self._sources(scope) if reference not in inside)
        for alias in scope.find_all(exp.TableAlias):
            is_source = not isinstance(alias.parent, (exp.CTE, exp.Table)) and alias.parent_select is scope
            if is_source and alias.this is not None:
                yield self.names.get(alias.this.meta.get("start", -1), "").lower()

    def _end(self, start: int) -> int:
        match = _TOKEN.match(self.sql, start)
        return match.end() if match else start


# --- splicing ---------------------------------------------------------------------------------------------------------


def _spliced(
    sql: str, references: Sequence[_Reference], bound: Mapping[int, TableKey], mentions: Iterator[Edit]
) -> Statement:
    """The text with placeholders, aliases and mentions in place; a table that is read twice has one placeholder."""
    placeholders: dict[TableKey, str] = {}
    edits = [(start, end, _escaped(text)) for start, end, text in mentions]
    for reference in references:
        if reference.start in bound:
            name = placeholders.setdefault(bound[reference.start], f"t{len(placeholders)}")
            edits.append((reference.start, reference.end, _apart(sql, reference, name)))
            if reference.alias is None:
                alias = _escaped(_quoted(reference.known_as))
                edits.append((reference.alias_at, reference.alias_at, f" AS {alias}"))
    text, at = "", 0
    for start, end, replacement in sorted(edits, key=lambda edit: edit[:2]):
        text += _escaped(sql[at:start]) + replacement
        at = end
    text += _escaped(sql[at:])
    return Statement(text if placeholders else sql, {name: key for key, name in placeholders.items()})


def _escaped(text: str) -> str:
    """Braces doubled, as Python's formatter wants them."""
    return text.replace("{", "{{").replace("}", "}}")


def _comments(sql: str, start: int, end: int) -> str:
    """The spaces and comments inside a name of several parts, which stay."""
    return "".join(sql[start + at : start + to] for kind, at, to in _lexemes(sql[start:end]) if kind == "space")


def _apart(sql: str, reference: _Reference, name: str) -> str:
    """The placeholder, with a space where only a backtick kept the name from its neighbour."""
    before = " " if re.match(r"\w", sql[: reference.start][-1:]) else ""
    after = " " if re.match(r"\w", sql[reference.end :][:1]) else ""
    return f"{before}{{{name}}}{_escaped(_comments(sql, reference.start, reference.end))}{after}"
