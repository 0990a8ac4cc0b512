"""Definitions of tables, read from the DDL of MySQL, TiDB and Postgres, and kept over time."""
