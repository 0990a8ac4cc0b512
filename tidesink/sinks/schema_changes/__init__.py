"""Changes of a table's schema: DDL in topics, and the decision by the table's policies."""
