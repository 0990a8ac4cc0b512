"""Coverage-guided fuzzing of whatever reads bytes from outside: ``python -m tests.fuzz --help``."""
