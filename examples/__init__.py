"""Examples that run from a checkout of the repository."""
