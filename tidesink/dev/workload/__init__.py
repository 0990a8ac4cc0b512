"""A seeded, repeatable shop workload, written to real topics through tidesink's own encoders."""

from tidesink.dev.workload.produce import WorkloadOptions, WorkloadReport, write_workload

__all__ = ["WorkloadOptions", "WorkloadReport", "write_workload"]
