"""What a worker remembers beside its targets: progress, status, documents."""
