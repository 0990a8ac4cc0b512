"""The worker: its main loop, one task per table, and replay."""
