"""Benchmarks, run as `make bench-NAME`. Each measures Tidemark and its rivals in one run and ends with a JSON line."""
