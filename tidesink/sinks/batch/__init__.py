"""One batch of one topic: fetched, decoded and reduced in tasks, then applied to the target."""
