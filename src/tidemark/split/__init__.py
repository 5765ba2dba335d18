"""PostgreSQL statements, split: engines compute what is below, PostgreSQL finishes what is above.

A statement is never translated. The part of it that an engine computes exactly as PostgreSQL would (scans, joins,
filters, exact sums and counts) becomes a tree (`ir`), and its rows come back as arrays: `SELECT <the rest> FROM
unnest($1, …)`, which PostgreSQL runs in the client's own session. What is not proven to be equal is never computed
below; if nothing remains, the statement is `Unproven`, and the caller passes it through.

The package does no I/O. Its caller follows these steps, or iterates `steps`, which contains them:

1. `parse(statement)` returns a `Parsed`.
2. `facts_query(parsed)` is run in the session; `SessionFacts.read` reads its one text.
3. `split(parsed, facts, values)` returns a `Plan`, or a `Question`, whose `sql` is run in the session with the
   parameters of the statement; its one text is read with `answers`, and `split` is called again with all values.
4. For each plan in `Plan.scalars`, in order: steps 5 and 6, with its top wrapped by `scalar_query`; then
   `plan.with_scalars` takes the literals that `scalar_value` reads.
5. An engine runs the bottom of each of `Plan.parts` (see `tidemark.engines`).
6. `Plan.top` is run in the session with the parameters of the statement and, after them, the arrays of all parts.
"""

from tidemark.split.facts import SessionFacts, facts_query
from tidemark.split.parse import Parsed, parse
from tidemark.split.plan import Output, Plan, PlanPart
from tidemark.split.splitting import Question, answers, scalar_query, scalar_value, split
from tidemark.split.steps import Finish, Query, Run, Step, steps

__all__ = [
    "Finish",
    "Output",
    "Parsed",
    "Plan",
    "PlanPart",
    "Query",
    "Question",
    "Run",
    "SessionFacts",
    "Step",
    "answers",
    "facts_query",
    "parse",
    "scalar_query",
    "scalar_value",
    "split",
    "steps",
]
