"""Column types and values on all sides: SQL, Avro, canal-json, Python, Arrow, Spark, and target DDL."""
