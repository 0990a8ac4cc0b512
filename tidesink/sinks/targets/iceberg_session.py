"""The Spark session of one Iceberg table: its catalog, and settings that suit small batches.

A catalog is a setting of the session, so that it needs none of Spark's extensions and stands beside Delta's
``spark_catalog``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tidesink.errors import ConfigError
from tidesink.sinks.targets.iceberg_errors import reading_error
from tidesink.sinks.targets.lake_path import try_path
from tidesink.sinks.targets.spark_errors import SPARK_ERRORS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG_CLASS: Final = "org.apache.iceberg.spark.SparkCatalog"
_PREFIX: Final = "spark.sql.catalog."
_ONE_AT_A_TIME: Final = threading.Lock()
_DEFAULTS: Final[Mapping[str, str]] = {
    # A cached table would show the commits of others half a minute late.
    "cache-enabled": "false",
}


def open_session(spark: SparkSession, catalog: str, properties: Mapping[str, str]) -> SparkSession:
    """A new session beside ``spark`` that knows the catalog.

    Raises:
        ConfigError: Iceberg is not on Spark's class path, or nothing says what the catalog is.
        TransientTargetError: the catalog does not answer.
    """
    session = spark.newSession()
    _check_class_path(session)
    if not properties and session.conf.get(_PREFIX + catalog, None) is None:
        raise ConfigError(
            f"nothing says what the catalog {catalog} is: give target.catalog-properties (type, uri, "
            f"warehouse, …), or spark.conf its settings {_PREFIX}{catalog}…",
            key="target.catalog-properties",
        )
    if properties:
        session.conf.set(_PREFIX + catalog, CATALOG_CLASS)
    for name, value in {**_DEFAULTS, **properties}.items():
        session.conf.set(f"{_PREFIX}{catalog}.{name}", value)
    _load_catalog(session, catalog)
    return session


def _load_catalog(session: SparkSession, catalog: str) -> None:
    """Have the catalog made now: each session has one, and a catalog behind JDBC makes its tables first."""
    with _ONE_AT_A_TIME:
        try:
            session.catalog.tableExists(f"{catalog}.tidesink.none")
        except SPARK_ERRORS as exc:
            raise reading_error(exc, table=None) from exc


def _check_class_path(session: SparkSession) -> None:
    from py4j.java_gateway import JavaClass

    jvm: Any = session._jvm
    if not isinstance(jvm.org.apache.iceberg.spark.SparkCatalog, JavaClass):
        raise ConfigError(
            "the Spark session that runs here has no Iceberg on its class path: let the worker start its "
            "own, or start it with build_session(target='iceberg')"
        )


def try_catalog(catalog: str, properties: Mapping[str, str]) -> str:
    """What can be said of a catalog without starting Spark: whether a warehouse on this machine is usable.

    Raises:
        ConfigError: it cannot be listed or written to, with the system's reason.
    """
    if properties.get("type") == "hadoop" and "warehouse" in properties:
        return try_path(properties["warehouse"], setting="target.catalog-properties.warehouse")
    return f"the catalog {catalog} is not tried here: the worker opens it through Spark when it starts"
