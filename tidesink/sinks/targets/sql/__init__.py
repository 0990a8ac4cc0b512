"""Postgres, MySQL and MariaDB: rows and progress in one transaction."""
