"""Code that Delta and Iceberg share: table locations and statements, batches as files, and batches by MERGE."""
