"""What is known of a table's writers, and how its records are decoded by it: one module a protocol."""
