"""Delta tables: rows and progress in one commit."""
