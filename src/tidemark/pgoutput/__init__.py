"""PostgreSQL's logical replication protocol: frames, messages, transactions and their changes. Performs no I/O."""
