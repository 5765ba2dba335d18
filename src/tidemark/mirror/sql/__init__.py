"""The user's SQL, with each table of the mirror replaced by a placeholder and every other byte left as it was.

    select o.id from public.orders o, crm.customers   ->   select o.id from {t0} o, {t1} AS `customers`

PostgreSQL's `only orders` and `orders *` are understood, and taken out of the text: Spark does not have them.

Nothing is generated from a syntax tree, because a generator changes meanings: the text is spliced. Where the tables
are is found twice, by a scan of the tokens that follows Spark's grammar (SqlBaseLexer.g4, SqlBaseParser.g4) and by
sqlglot. Only a query on which both agree is bound, so no name reaches Spark's own catalog, where it might be found and
answer with some other table's rows.
"""

from tidemark.mirror.sql.binding import bind
from tidemark.mirror.sql.splice import Statement

__all__ = ["Statement", "bind"]
