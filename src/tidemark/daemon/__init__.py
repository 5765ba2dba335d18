"""Several mirrors in one process, on one Spark session, as `tidemark.toml` lists them."""
