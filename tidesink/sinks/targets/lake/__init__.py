"""Shared parts of Delta and Iceberg: locations and statements, batches as files, and batches by MERGE."""
