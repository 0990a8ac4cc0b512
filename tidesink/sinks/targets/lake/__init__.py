"""Code that Delta and Iceberg share: table locations, SQL statements, and batches written as files or by
MERGE.
"""
