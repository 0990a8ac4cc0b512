"""What the tables of a running worker share: retries, users' requests, observers, reads of a topic."""
