"""What the local broker and registry are made of: their published jars, at fixed versions.

Version ranges are not used: Kafka 4.4.0 was published in part only. Apicurio 3.0.9 is the last which
runs on Java 17 and opens no management port beside its own.
"""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Final

from tidesink.errors import DevStackError
from tidesink.sinks.ivy import Progress, fetch, silent
from tidesink.sinks.jar_set import Archive, JarSet
from tidesink.sinks.spark_versions import Coordinate

KAFKA: Final = JarSet(
    "kafka",
    (
        Coordinate("org.apache.kafka", "kafka_2.13", "4.3.1"),
        Coordinate("org.slf4j", "slf4j-simple", "1.7.36"),
    ),
)
APICURIO: Final = JarSet(
    "apicurio-registry",
    (Coordinate("io.apicurio", "apicurio-registry-app", "3.0.9"),),
    archive=Archive("tar.gz", "all"),
)
RUNNER: Final = "apicurio-registry-app-*-runner.jar"


def broker_jars(*, progress: Progress = silent) -> Path:
    """The folder of the broker's jars.

    Raises DevStackError when they cannot be fetched.
    """
    return fetch(KAFKA, progress=progress)


def registry_runner(*, progress: Progress = silent) -> Path:
    """The registry's runnable jar, its libraries beside it.

    Raises DevStackError when it cannot be fetched.
    """
    folder = fetch(APICURIO, progress=progress, finish=_unpack)
    runners = sorted(folder.glob(RUNNER))
    if not runners:
        raise DevStackError(f"{folder} holds no {RUNNER}; remove the folder and try again")
    return runners[0]


def _unpack(folder: Path) -> None:
    for archive in sorted(folder.glob("*.tar.gz")):
        with tarfile.open(archive) as tar:
            unpack(tar, folder)
        archive.unlink()


def unpack(tar: tarfile.TarFile, folder: Path) -> None:
    """Unpack files and folders, nothing that would land elsewhere.

    Raises DevStackError for an archive that holds anything else.
    """
    if hasattr(tarfile, "data_filter"):
        try:
            tar.extractall(folder, filter="data")
        except tarfile.FilterError as exc:
            raise DevStackError(f"{tar.name!r} is no archive of plain files: {exc}") from exc
        return
    # Debian 12's Python (3.11.2) and others before 3.10.12 and 3.11.4 have no filters.
    for member in tar.getmembers():
        inside = (folder / member.name).resolve().is_relative_to(folder.resolve())
        if not inside or not (member.isfile() or member.isdir()):
            raise DevStackError(f"{tar.name!r} is no archive of plain files: {member.name}")
    tar.extractall(folder)  # noqa: S202
