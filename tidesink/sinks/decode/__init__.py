"""Finds the columns of a table, and decodes its records into rows that fit the target."""
