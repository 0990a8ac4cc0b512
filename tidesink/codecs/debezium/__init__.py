"""The ``debezium-json`` and ``debezium-avro`` codecs: decoding and encoding."""
