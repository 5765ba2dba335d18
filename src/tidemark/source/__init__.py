"""PostgreSQL as a client sees it: sessions, facts, the catalogue, publications and slots."""
