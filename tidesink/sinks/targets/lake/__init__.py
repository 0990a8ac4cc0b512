"""Code that Delta and Iceberg share: table locations, statements, batches as files, and batches by MERGE."""
