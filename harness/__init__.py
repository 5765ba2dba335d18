"""Shared by tests, the demo and the benchmarks: real servers, load and faults. Not shipped."""
