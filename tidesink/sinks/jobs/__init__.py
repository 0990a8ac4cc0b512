"""The batches of a table: jobs describe them, and one function runs them."""
