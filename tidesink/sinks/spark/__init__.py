"""tidesink's read path as a Spark data source, and the Spark session of workers."""
