"""What dead processes leave in a JVM that they shared: objects that nobody will ever let go of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from py4j import protocol
from py4j.finalizer import ThreadSafeFinalizer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RELEASE: Final = f"{protocol.MEMORY_COMMAND_NAME}{protocol.MEMORY_DEL_SUBCOMMAND_NAME}"
_NUMBERED: Final = re.compile(r"o\d+$")


def objects_held(spark: SparkSession) -> set[str]:
    """The names of all objects that the JVM keeps for Python processes, whichever."""
    gateway: Any = spark.sparkContext._gateway
    names = str(gateway.java_gateway_server.getGateway().getBindings().keySet().toString())
    return {name for name in names.strip("[]").split(", ") if _NUMBERED.fullmatch(name)}


def let_go_since(spark: SparkSession, before: set[str]) -> None:
    """Have the JVM forget what it has come to keep since ``before``, but for what this process holds.

    A process that was killed never says what it needs no longer. Two hundred of them filled a heap of 3 GB
    with their sessions and plans, until the JVM did nothing but look for room.
    """
    gateway: Any = spark.sparkContext._gateway
    come = objects_held(spark) - before
    ours = {found.group() for key in list(ThreadSafeFinalizer.finalizers) if (found := _NUMBERED.search(key))}
    for name in come - ours:
        gateway._gateway_client.send_command(f"{_RELEASE}{name}\ne\n")
