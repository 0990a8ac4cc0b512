"""The command line: one small module a command; ``main`` puts them together."""
