"""Poll mode: mirrors a source without logical decoding by reading all tables in one snapshot per cycle."""
