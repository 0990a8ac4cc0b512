"""Decodes a table's records into rows that fit the target. Runs in tasks; a decode plan for each protocol."""
