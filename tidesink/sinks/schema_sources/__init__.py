"""Sources of a table's columns and types in the driver, with one module per protocol."""
