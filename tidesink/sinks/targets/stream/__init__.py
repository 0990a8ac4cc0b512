"""Kafka topics and HTTP services: changes sent on, at least once."""
