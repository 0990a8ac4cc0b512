"""State that a worker keeps outside its targets: progress, status, documents."""
