"""Parses table definitions from the DDL of MySQL, TiDB and Postgres, and tracks their changes over time."""
