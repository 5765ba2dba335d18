"""What tests, the demo and the benchmarks share: real servers, and later real load and real faults. Not shipped."""
