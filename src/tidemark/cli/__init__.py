"""The command line: one module for each command, which parses options, calls the library and prints the result."""
