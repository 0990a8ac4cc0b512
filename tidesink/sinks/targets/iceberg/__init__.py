"""Iceberg tables: rows and progress become visible in one transaction."""
