"""Decodes and encodes the protocol ``flat-avro``, which TiCDC calls ``avro``."""
