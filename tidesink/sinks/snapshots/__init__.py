"""Snapshots and resyncs of tables: the parts that are read, and the keys that are removed."""
