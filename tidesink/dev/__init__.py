"""The local stack: a real broker, a real schema registry and a workload, without Docker."""
