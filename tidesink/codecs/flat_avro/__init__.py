"""The ``flat-avro`` codec: TiCDC's ``avro`` protocol, read and written."""
