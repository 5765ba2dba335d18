"""TPC-H and TPC-DS in PostgreSQL: schemas of the specifications, data made by DuckDB, and the queries."""
