"""Cuts: consistent versions of all tables of a pipeline. Their bounds, and how they are published."""
