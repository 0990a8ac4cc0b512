"""What Spark users get: tidesink's read path as a data source."""
