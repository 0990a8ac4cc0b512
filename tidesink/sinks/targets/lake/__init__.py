"""What Delta and Iceberg share: a table's place and statements, batches as files, and batches by MERGE."""
