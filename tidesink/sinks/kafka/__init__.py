"""Kafka as the source of batches: consumers, offsets, and Arrow batches."""
