"""Kafka as the source of batches and the place of dead letters: consumers, ranges of records as Arrow."""
