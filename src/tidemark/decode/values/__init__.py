"""Values: one module for each family of PostgreSQL types, from binary and from text to Arrow."""
