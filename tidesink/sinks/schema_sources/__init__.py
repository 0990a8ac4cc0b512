"""Sources of a table's columns and types, with one module per protocol. They run in the driver."""
