"""Reading rows of the source database: one table in key ranges, as the texts that canal-json uses."""
