"""Rates and floors, all measured in one run on one machine: ``python -m benchmarks``."""
