"""Spark: sessions of workers, the jars and the Java that they need, and a data source for users of Spark."""
