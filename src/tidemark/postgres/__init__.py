"""The PostgreSQL client side: sessions, the catalog, slots, publications and requirements."""
