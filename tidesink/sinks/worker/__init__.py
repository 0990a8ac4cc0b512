"""The worker: its loop, one task per table, retries, control, observers, replay."""
