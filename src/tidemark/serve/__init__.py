"""The SQL server: PostgreSQL clients are relayed to the source, and statements can be answered by the mirror."""
