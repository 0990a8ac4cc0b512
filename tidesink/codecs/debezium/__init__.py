"""The ``debezium-json`` and ``debezium-avro`` codecs, read and written."""
