"""Reads tables from the source database in key ranges. Values have the text form that canal-json uses."""
