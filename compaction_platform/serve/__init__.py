"""Table operations over HTTP: create, write, query and compact Iceberg tables; many tenants, one service."""
