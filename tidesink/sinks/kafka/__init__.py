"""Kafka as the source of batches: client properties, consumers, and ranges of records as Arrow."""
