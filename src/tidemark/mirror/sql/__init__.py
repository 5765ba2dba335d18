"""The user's SQL, with each table of the mirror replaced by a placeholder and every other byte left as it was.

    select o.id from public.orders o, crm.customers   ->   select o.id from {t0} o, {t1} AS `customers`

PostgreSQL's `only orders` and `orders *` are recognized and removed from the text, because Spark does not support them.

The text is spliced and not generated from a syntax tree, because a generator can change the meaning. The tables are
found twice: by a scan of the tokens that follows Spark's grammar (SqlBaseLexer.g4, SqlBaseParser.g4), and by sqlglot.
Only a query on which both agree is bound, so no name is resolved in Spark's own catalog, where it might match another
table and return its rows.
"""

from tidemark.mirror.sql.binding import bind
from tidemark.mirror.sql.splice import Statement

__all__ = ["Statement", "bind"]
