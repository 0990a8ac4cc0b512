"""The worker: its loop, one task a table, retries, control, observers, replay."""
