"""Kafka as the source of batches and the store of dead letters: consumers, offsets, and Arrow batches."""
