"""The tasks of a batch: they fetch, decode and reduce the records, in Spark or on rows of a database."""
