"""The worker: its main loop, one task per table, snapshots, cuts, users' requests, and replay."""
