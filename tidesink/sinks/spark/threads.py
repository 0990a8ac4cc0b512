"""Threads that talk to the JVM and leave no connection to it behind, and sessions of one table each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from py4j.protocol import Py4JError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


T = TypeVar("T")


def start_thread(spark: SparkSession, work: Callable[[], T], *, name: str) -> Future[T]:
    """Do some work in a thread of its own; the future has what came of it.

    PySpark gives every thread a connection and a JVM thread, which stay open until garbage is collected:
    here they are closed with the thread.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = work()
        except BaseException as exc:  # noqa: BLE001  (whoever waits for the future raises it)
            _close_connection(spark)
            future.set_exception(exc)
        else:
            _close_connection(spark)
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def _close_connection(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway
    try:
        client = gateway._gateway_client
        connection = client.get_thread_connection()
        if connection is not None:
            client.deque.remove(connection)
            connection.close()
    except (AttributeError, ValueError, OSError, Py4JError):
        # Another gateway than PySpark's pinned threads, or the JVM is gone: nothing is left to close.
        return


def in_session(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same rows as a frame of ``session``; what is persisted stays so, the cache is shared."""
    from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

    if frame.sparkSession is session:
        return frame
    jvm: Any = session._jvm
    plan = frame._jdf.logicalPlan()
    rows = jvm.org.apache.spark.sql.classic.Dataset.ofRows(session._jsparkSession, plan)
    return ClassicFrame(rows, session)
