"""Builds the decode plan of a table from its known schemas, with one module per protocol."""
