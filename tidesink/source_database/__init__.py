"""Rows of the source's database: one table by its key, in ranges, as the texts that canal-json carries."""
