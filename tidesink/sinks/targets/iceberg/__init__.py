"""The target for Iceberg tables. A batch's rows and the progress become visible in one commit."""
