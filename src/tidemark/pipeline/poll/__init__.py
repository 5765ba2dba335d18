"""Poll: a mirror of a source without logical decoding, from one snapshot of all tables to the next."""
