"""Compare a table of the source's database with its copy at the target, key by key, as of one point."""
