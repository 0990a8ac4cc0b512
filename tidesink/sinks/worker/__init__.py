"""The worker: its main loop, one task per table, cuts, and replay."""
