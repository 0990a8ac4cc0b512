"""Spark that appends one row to a Delta table, in a process of its own.

Its command line has JSON: ``path`` of the table, ``row`` (a number), and ``conf``, more of Spark's settings.
"""

from __future__ import annotations

import json
import os
import sys

from tests.sessions import SMALL_SPARK, beside_spark
from tidesink.sinks.spark.session import build_session


def main(text: str) -> None:
    """Append the row."""
    asked = json.loads(text)
    os.environ["SPARK_DIST_CLASSPATH"] = os.pathsep.join(map(str, beside_spark()))
    spark = build_session(master="local[1]", conf={**SMALL_SPARK, **asked["conf"]}, driver_memory="512m")
    frame = spark.range(asked["row"], asked["row"] + 1, numPartitions=1)
    frame.write.format("delta").mode("append").save(asked["path"])
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
