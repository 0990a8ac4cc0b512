"""Decodes and encodes the protocol ``canal-json``, the JSON messages of TiCDC and Alibaba's Canal."""
