"""Values by type family: decoded from PostgreSQL's binary and text formats into Arrow arrays. Pure."""
