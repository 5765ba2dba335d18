"""Benchmarks, run with `make bench-NAME`; each measures Tidemark and its rivals in one run and prints JSON last."""
