"""State that a worker keeps outside its targets: progress and status of tables, and other JSON documents."""
