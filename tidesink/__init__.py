"""Sink workers and codecs for TiCDC and Debezium change topics."""
