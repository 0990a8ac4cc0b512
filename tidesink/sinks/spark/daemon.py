"""The process that forks Spark's Python workers, with what their tasks need imported before the fork.

Each worker would import it by itself otherwise, in the first batch and whenever Spark starts one more:
0.4 s of CPU. ``session`` names this module for a local master alone, whose workers have this
process's packages. An executor of a cluster starts ``pyspark.daemon``: there tasks import what they need, and
say which package is missing.

Only modules may exist before the fork: no Kafka client, whose threads the child would not have, and nothing
of Arrow that starts its thread pools.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from importlib import import_module
from typing import Final

# By room; a codec that lacks an optional package is imported by the task that needs it, and fails there.
MODULES: Final = (
    "pyarrow.compute",
    "tidesink.sinks.batch.tasks",
    "tidesink.sinks.kafka.fetch",
    "tidesink.sinks.plans.flat_avro",
    "tidesink.sinks.plans.canal_json",
    "tidesink.sinks.plans.debezium_avro",
    "tidesink.sinks.plans.debezium_json",
)


def import_modules() -> None:
    """Import what tasks use; what cannot be imported is left to the task that needs it."""
    for name in MODULES:
        with suppress(ImportError):
            import_module(name)


def main() -> None:
    """Run Spark's own daemon."""
    from pyspark.daemon import manager

    import_modules()
    # A worker collects all garbage after each task: what is there before the fork is none (0.1 s a task).
    gc.freeze()
    manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
