"""``tidesink diff``: compares the rows of a table in the target with the source database, key by key."""
