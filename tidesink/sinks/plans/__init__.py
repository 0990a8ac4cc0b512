"""Decode plans from the known schemas of a table, with one module per protocol."""
