"""The command line: one module per command; ``main`` combines them."""
