"""Finds the columns and types of a table, in the Spark driver, with one module per protocol."""
