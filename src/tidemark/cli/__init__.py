"""The command line: one file for each command, and nothing that an import of the library would not give."""
