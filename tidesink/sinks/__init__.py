"""Sink workers: Kafka topics into tables, exactly once."""
