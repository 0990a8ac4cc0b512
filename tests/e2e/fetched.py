"""How many records Kafka's own Java client says that Spark has fetched, topic by topic."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NAMES: Final = "kafka.consumer:type=consumer-fetch-manager-metrics,client-id=*,topic={topic}"
# Spark closes a consumer 10 seconds after its last use, and with it go its numbers.
_LOOK_SECONDS: Final = 0.5


class Fetched:
    """The records of one topic that were fetched since it was made."""

    def __init__(self, spark: SparkSession, topic: str) -> None:
        self._spark = spark
        jvm: Any = spark._jvm
        self._jvm = jvm
        self._pattern = jvm.javax.management.ObjectName(_NAMES.format(topic=topic.replace(".", "_")))
        self._counts: dict[str, float] = {}
        self.look()
        self._before = dict(self._counts)

    @property
    def records(self) -> int:
        """What every consumer of the topic has had, those included that are closed."""
        return int(sum(self._counts.values()) - sum(self._before.values()))

    def look(self) -> None:
        """Take note of the consumers there are."""
        for name in self._ask("queryNames", self._pattern, None).toArray():
            # A consumer may be closed between the two questions: what it had was noted before.
            with suppress(Py4JJavaError):
                count = self._ask("getAttribute", name, "records-consumed-total")
                self._counts[name.toString()] = float(count)

    def _ask(self, method: str, *arguments: Any) -> Any:
        """A method of the JVM's bean server, by its interface: its class is not open to py4j."""
        types = {
            "queryNames": ("javax.management.ObjectName", "javax.management.QueryExp"),
            "getAttribute": ("javax.management.ObjectName", "java.lang.String"),
        }[method]
        java_class = self._jvm.java.lang.Class
        server = self._jvm.java.lang.management.ManagementFactory.getPlatformMBeanServer()
        found = java_class.forName("javax.management.MBeanServer").getMethod(
            method, self._array(java_class, [java_class.forName(name) for name in types])
        )
        return found.invoke(server, self._array(self._jvm.java.lang.Object, arguments))

    def _array(self, java_class: Any, members: Any) -> Any:
        gateway: Any = self._spark.sparkContext._gateway
        array = gateway.new_array(java_class, len(members))
        for number, member in enumerate(members):
            array[number] = member
        return array


@contextmanager
def fetched(spark: SparkSession, topic: str) -> Iterator[Fetched]:
    """What is fetched of a topic meanwhile; to be read when the context has ended."""
    found, ended = Fetched(spark, topic), threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_SECONDS):
            found.look()

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        found.look()
