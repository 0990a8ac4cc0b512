"""The connector jars of each Spark version: the one place where their coordinates stand.

The modules are found without importing pyspark, so that asking costs neither a JVM nor a second.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from tidesink.errors import ConfigError

INSTALL_SPARK: Final = "install it with: pip install 'tidesink[spark]'"


class Coordinate(NamedTuple):
    """One Maven module at one version, written ``group:name:version``."""

    group: str
    name: str
    version: str

    def __str__(self) -> str:
        return ":".join(self)


class ConnectorSet(NamedTuple):
    """What a Spark minor version needs beside its own jars to write Delta.

    ``targets`` are what a type of target needs besides; they are fetched and put on the class path for its
    pipelines alone.
    """

    connectors: tuple[Coordinate, ...]
    targets: Mapping[str, tuple[Coordinate, ...]]


_ICEBERG: Final = "org.apache.iceberg"

CONNECTORS: Final[dict[str, ConnectorSet]] = {
    "4.0": ConnectorSet(
        connectors=(Coordinate("io.delta", "delta-spark_4.0_2.13", "4.3.1"),),
        targets={"iceberg": (Coordinate(_ICEBERG, "iceberg-spark-runtime-4.0_2.13", "1.10.1"),)},
    ),
    "4.1": ConnectorSet(
        connectors=(Coordinate("io.delta", "delta-spark_4.1_2.13", "4.3.1"),),
        targets={"iceberg": (Coordinate(_ICEBERG, "iceberg-spark-runtime-4.1_2.13", "1.11.0"),)},
    ),
}


def spark_version() -> str:
    """The version of the installed pyspark.

    Raises ConfigError when pyspark is not installed.
    """
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError as exc:
        raise ConfigError(f"pyspark is not installed; {INSTALL_SPARK}") from exc


def minor_version(version: str) -> str:
    """``4.0`` of ``4.0.2``."""
    return ".".join(version.split(".")[:2])


def connector_set(version: str) -> ConnectorSet:
    """The connectors of a Spark version, full or minor.

    Raises ConfigError for a minor version which the table does not hold.
    """
    try:
        return CONNECTORS[minor_version(version)]
    except KeyError as exc:
        known = ", ".join(CONNECTORS)
        raise ConfigError(f"no connectors are known for Spark {version}; install pyspark {known}") from exc


def spark_jars_directory() -> Path:
    """The folder of the jars that pyspark ships.

    Raises ConfigError when pyspark is missing, or is the client-only package, which ships none.
    """
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or []) if spec else []:
        jars = Path(location) / "jars"
        if jars.is_dir():
            return jars
    raise ConfigError(f"pyspark with its jars is not installed; {INSTALL_SPARK}")
