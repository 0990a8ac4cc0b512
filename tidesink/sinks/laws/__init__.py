"""The rules of a batch, without Spark, Kafka or files: counts, a row per key, columns of a mode."""
