"""PostgreSQL as a client sees it: sessions, the catalog, slots, publications and requirements."""
