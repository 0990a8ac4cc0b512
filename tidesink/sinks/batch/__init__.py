"""One batch of one topic: tasks fetch, decode and reduce the records, then the driver applies the rows."""
