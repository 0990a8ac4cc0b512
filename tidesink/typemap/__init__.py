"""One table of types from SQL to Avro, canal-json, Python, Spark and target DDL."""
