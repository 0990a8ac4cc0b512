"""A server of the S3 protocol for tests: moto's, in a process of its own."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow.fs as pafs
import pytest

from tests.sessions import hadoop_settings
from tidesink.dev.stack import free_ports
from tidesink.sinks.targets.lake.storage import Bucket

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SECONDS: Final = 60
REGION: Final = "eu-west-3"
# Characters that paths and URLs write in different ways.
FOLDER: Final = "my lake %20+ü"


@dataclass(frozen=True)
class S3Bucket:
    """A bucket of a test's own."""

    endpoint: str
    name: str = field(default_factory=lambda: f"b{uuid.uuid4().hex[:12]}")
    access_key: str = "the-access-key"
    secret_key: str = "the-secret-key"

    def bucket(self, **other: Any) -> Bucket:
        """As tidesink opens it."""
        known = {
            "name": self.name,
            "region": REGION,
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "endpoint": self.endpoint,
            "path_style": True,
        }
        return Bucket(**{**known, **other})

    def create(self) -> None:
        """Make the bucket."""
        pafs.S3FileSystem(
            access_key=self.access_key,
            secret_key=self.secret_key,
            region=REGION,
            endpoint_override=self.endpoint,
            allow_bucket_creation=True,
        ).create_dir(self.name)

    def keys(self) -> list[str]:
        """The objects of the bucket."""
        found = self.bucket().filesystem().get_file_info(pafs.FileSelector(self.name, recursive=True))
        return sorted(one.path.partition("/")[2] for one in found if one.is_file)

    def hadoop_settings(self) -> dict[str, str]:
        """As Hadoop opens it, by their names after ``fs.s3a.``."""
        return {
            "endpoint": self.endpoint,
            "endpoint.region": REGION,
            "access.key": self.access_key,
            "secret.key": self.secret_key,
            "path.style.access": "true",
        }

    def known_to(self, session: SparkSession, **settings: str) -> None:
        """Give Spark's Hadoop the bucket's settings."""
        for name, value in {**self.hadoop_settings(), **settings}.items():
            hadoop_settings(session).set(f"fs.s3a.bucket.{self.name}.{name}", value)


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """The URL of a server that answers."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-p", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait(port: int) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
            return
        time.sleep(0.05)
    raise TimeoutError(f"no S3 server answers at port {port}")


@pytest.fixture
def s3_bucket(s3_endpoint: str) -> S3Bucket:
    """An empty bucket."""
    found = S3Bucket(s3_endpoint)
    found.create()
    return found
