"""Kafka as the source of batches and the store of dead letters: consumers, and record ranges as Arrow."""
