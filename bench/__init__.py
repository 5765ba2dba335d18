"""Benchmarks, run as `make bench-NAME`. Each measures us and its anchors in one run and ends with a JSON line."""
