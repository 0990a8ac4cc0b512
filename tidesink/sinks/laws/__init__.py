"""The rules of a batch, without Spark, Kafka or files: counts, a row per key, bounds, columns of a mode."""
