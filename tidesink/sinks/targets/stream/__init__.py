"""Kafka topics and HTTP services: changes are sent at least once."""
