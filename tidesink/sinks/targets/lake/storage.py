"""The files of a lake's table as Python tasks open them, by pyarrow: on a local disk, or in an S3 bucket.

Delta and Iceberg open a table's files in the JVM, by Hadoop's ``S3AFileSystem`` or Iceberg's ``S3FileIO``.
``hadoop_storage`` and ``iceberg_storage`` take the settings from there: endpoint, region, and the
credentials that the JVM's own providers give at this moment. What has no exact equivalent is a reason, in
words, for leaving the table's files to Spark.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.fs as pafs

from tidesink.config.targets import S3_SCHEMES
from tidesink.errors import TargetError, TransientTargetError
from tidesink.sinks.spark.errors import SPARK_ERRORS, is_java, summary

T = TypeVar("T")
R = TypeVar("R")

_S3A: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_SESSION: Final = "software.amazon.awssdk.auth.credentials.AwsSessionCredentials"
# Hadoop's settings under fs.s3a. that change what is stored, or how S3 is reached, and the values under which
# pyarrow does the same.
_HADOOP_SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {
    "encryption.algorithm": ("",),
    "server-side-encryption-algorithm": ("",),
    "requester.pays.enabled": ("", "false"),
    "accesspoint.arn": ("",),
    "delegation.token.binding": ("",),
    "proxy.host": ("",),
    "custom.signers": ("",),
    "signing-algorithm": ("",),
    "s3.signing-algorithm": ("",),
    "http.signer.enabled": ("", "false"),
    "endpoint.fips": ("", "false"),
    "acl.default": ("",),
    "create.storage.class": ("",),
    "object.content.encoding": ("",),
    "client.s3.custom.headers": ("",),
}
# Iceberg's settings of its S3FileIO that a storage has, those that it need not have, and none other.
_ICEBERG_SETTINGS: Final = frozenset(
    {
        "client.region",
        "s3.access-key-id",
        "s3.secret-access-key",
        "s3.session-token",
        "s3.session-token-expires-at-ms",
        "s3.endpoint",
        "s3.path-style-access",
        "s3.remote-signing-enabled",
        "s3.delete-enabled",
        "s3.multipart.size-mb",
        "s3.staging-dir",
    }
)
# What S3 answers to who may not do what was asked, or asks it of the wrong bucket: the same again later.
_FOR_GOOD: Final = frozenset(
    {
        "ACCESS_DENIED",
        "INVALID_ACCESS_KEY_ID",
        "INVALID_CLIENT_TOKEN_ID",
        "MISSING_AUTHENTICATION_TOKEN",
        "NO_SUCH_BUCKET",
        "SIGNATURE_DOES_NOT_MATCH",
    }
)
_AWS_CODE: Final = re.compile(r"AWS Error ([A-Z_]+)")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
# Files of a bucket that a task asks for at once: each waits for several answers.
_AT_ONCE: Final = 16
_CONNECT_SECONDS: Final = 10.0
# A bucket that pyarrow could not reach is tried again after this.
_TRY_AGAIN_SECONDS: Final = 300.0


class StorageError(TransientTargetError):
    """Python could not read or write a file, which Spark may be able to; nothing of the batch is visible."""


def local_path(location: str) -> Path:
    """A file of this machine's file system, from what a table calls it. Hadoop's paths are not encoded."""
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def is_local(location: str) -> bool:
    """Whether a location is in the file system of the machine."""
    return location.startswith(("/", "file:/"))


@dataclass(frozen=True)
class Bucket:
    """An S3 bucket, and how it is reached. Travels inside pickled tasks; its repr has no secret."""

    name: str
    region: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    """A URL; None for AWS's own."""
    path_style: bool = False

    def filesystem(self) -> pafs.FileSystem:
        """Opened once in each process."""
        return _s3_filesystem(self)


@lru_cache(maxsize=16)
def _s3_filesystem(bucket: Bucket) -> pafs.FileSystem:
    parts = urlsplit(bucket.endpoint or "https:")
    # One request for a small file instead of three; older releases know it as a default of C++ alone.
    delayed = {"allow_delayed_open": True} if int(pa.__version__.partition(".")[0]) >= 21 else {}
    return pafs.S3FileSystem(
        access_key=bucket.access_key,
        secret_key=bucket.secret_key,
        session_token=bucket.session_token,
        region=bucket.region,
        scheme=parts.scheme,
        endpoint_override=f"{parts.netloc}{parts.path.rstrip('/')}" or None,
        force_virtual_addressing=not bucket.path_style,
        connect_timeout=_CONNECT_SECONDS,
        retry_strategy=pafs.AwsStandardS3RetryStrategy(max_attempts=5),
        **delayed,
    )


@dataclass(frozen=True)
class Storage:
    """Opens files of a table by their locations: of the machine's disk where there is no bucket."""

    bucket: Bucket | None = None

    def holds(self, location: str) -> bool:
        """Whether a file is here."""
        if self.bucket is None:
            return is_local(location)
        scheme, _, path = location.partition("://")
        # S3A leaves out empty parts of a key, which pyarrow refuses.
        return scheme in S3_SCHEMES and path.startswith(f"{self.bucket.name}/") and "//" not in path

    @contextmanager
    def reading(self, location: str) -> Iterator[pa.NativeFile]:
        """Open a file that is there.

        Raises:
            TargetError: S3 does not let it be read.
            TransientTargetError: it is not there.
            StorageError: it cannot be read now.
        """
        if self.bucket is None:
            with pa.memory_map(str(local_path(location))) as file:
                yield file
        else:
            with _reported(location), self.bucket.filesystem().open_input_file(_key(location)) as file:
                yield file

    @contextmanager
    def writing(self, location: str) -> Iterator[pa.NativeFile]:
        """Open a new file; in a bucket it is there, as a whole, when it is closed. Raises as ``reading``."""
        if self.bucket is None:
            local = local_path(location)
            local.parent.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(local), "wb") as file:
                yield file
        else:
            with _reported(location), self.bucket.filesystem().open_output_stream(_key(location)) as file:
                yield file

    def each(self, function: Callable[[T], R], files: Sequence[T]) -> list[R]:
        """What a function gives for each file, in their order; several at once where answers take long."""
        if self.bucket is None or len(files) < 2:
            return [function(file) for file in files]
        with ThreadPoolExecutor(min(_AT_ONCE, len(files))) as pool:
            return [*pool.map(function, files)]

    def reason_unreachable(self, location: str) -> str | None:
        """Why Python does not reach the bucket, as a folder in it shows; None where it does.

        Looked at once, and again some minutes after a failure.
        """
        if self.bucket is None:
            return None
        when, reason = _reached.get(self.bucket.name, (-math.inf, "not tried"))
        if reason and time.monotonic() - when > _TRY_AGAIN_SECONDS:
            try:
                self.bucket.filesystem().get_file_info(_key(location))
                reason = self._remember(None)
            except (OSError, ValueError) as exc:
                reason = self._remember(f"Python does not reach {location} ({_code(exc)})")
        return reason

    def leave(self, error: StorageError) -> str:
        """Leave the files of the bucket to Spark for some minutes; the reason."""
        return str(self._remember(error.message))

    def _remember(self, reason: str | None) -> str | None:
        if self.bucket is not None:
            _reached[self.bucket.name] = time.monotonic(), reason
        return reason


LOCAL: Final = Storage()
# By bucket: when it was tried last, and why it was not reached.
_reached: dict[str, tuple[float, str | None]] = {}


def _key(location: str) -> str:
    """``bucket/key`` of a URL, whose characters are not encoded."""
    return location.partition("://")[2]


def _code(exc: Exception) -> str:
    """S3's code in an error of pyarrow, which has no class for each; its text may hold anything."""
    found = _AWS_CODE.search(str(exc))
    return f"S3 says {found[1]}" if found else type(exc).__name__


@contextmanager
def _reported(location: str) -> Iterator[None]:
    """Raise pyarrow's errors as ``Storage.reading`` says."""
    try:
        yield
    except FileNotFoundError:
        raise TransientTargetError(f"{location} is not there: another program may have removed it") from None
    except OSError as exc:
        found = _AWS_CODE.search(str(exc))
        if found and found[1] in _FOR_GOOD:
            raise TargetError(
                f"{location} cannot be used from Python ({_code(exc)}): may the worker's credentials read "
                "and write there?"
            ) from None
        raise StorageError(f"{location} cannot be used from Python now ({_code(exc)})") from None


# What the JVM has. Each gives the storage, or the reason why Spark alone reads and writes the files.


def hadoop_storage(location: str, configuration: Any, jvm: Any) -> Storage | str:
    """As Hadoop opens a location by its configuration (Java's ``Configuration``)."""
    hadoop = jvm.org.apache.hadoop.fs
    named = _SCHEME.match(location)
    scheme = named[1] if named else str(hadoop.FileSystem.getDefaultUri(configuration).getScheme())
    if scheme == "file":
        return LOCAL
    if named is None or scheme not in S3_SCHEMES:
        return f"only Spark reads and writes files on {scheme}: {location}"
    try:
        return _s3a_storage(location, hadoop.Path(location).getFileSystem(configuration))
    except SPARK_ERRORS as exc:
        return f"the settings of {location} cannot be looked up ({summary(exc)})"


def _s3a_storage(location: str, filesystem: Any) -> Storage | str:
    kind = str(filesystem.getClass().getName())
    if kind != _S3A:
        return f"only Spark reads and writes files by {kind}: {location}"
    # With the settings of fs.s3a.bucket.NAME in the place of the general ones.
    settings = filesystem.getConf()
    for name, allowed in _HADOOP_SETTINGS.items():
        value = str(settings.getTrimmed(f"fs.s3a.{name}", ""))
        if value.lower() not in allowed:
            return f"fs.s3a.{name} is set for {location}"
    internals = filesystem.getS3AInternals()
    client = internals.getAmazonS3Client("tidesink").serviceClientConfiguration()
    given = client.endpointOverride()
    endpoint = str(given.get()) if given.isPresent() else None
    region = str(client.region().id())
    if endpoint is None:
        region = _region_of(filesystem, internals) or region
    shared = internals.shareCredentials("tidesink")
    try:
        credentials = shared.resolveCredentials()
    finally:
        shared.close()
    bucket = Bucket(
        urlsplit(location).netloc,
        region,
        access_key=credentials.accessKeyId(),
        secret_key=credentials.secretAccessKey(),
        session_token=credentials.sessionToken() if is_java(credentials, _SESSION) else None,
        endpoint=endpoint,
        path_style=settings.getTrimmed("fs.s3a.path.style.access", "false").lower() == "true",
    )
    return _checked(bucket, location)


_regions: dict[str, str | None] = {}


def _region_of(filesystem: Any, internals: Any) -> str | None:
    """The region that a bucket of AWS's is in, to which the JVM's client goes by itself; None: not said."""
    name = str(filesystem.getUri().getHost())
    if name not in _regions:
        _regions[name] = internals.getBucketMetadata().bucketRegion()
    return _regions[name]


def iceberg_storage(location: str, properties: Mapping[str, str]) -> Storage | str:
    """As Iceberg's ``S3FileIO`` with these properties opens a location."""
    unknown = sorted(
        name for name in properties if name.startswith(("s3.", "client.")) and name not in _ICEBERG_SETTINGS
    )
    if unknown or properties.get("s3.remote-signing-enabled", "false").lower() != "false":
        return f"the catalog sets {unknown[0] if unknown else 's3.remote-signing-enabled'}"
    key, secret = (properties.get(name) for name in ("s3.access-key-id", "s3.secret-access-key"))
    region = properties.get("client.region")
    if not (key and secret and region):
        return "the catalog's properties have no s3.access-key-id, s3.secret-access-key and client.region"
    bucket = Bucket(
        urlsplit(location).netloc,
        region,
        access_key=key,
        secret_key=secret,
        session_token=properties.get("s3.session-token"),
        endpoint=properties.get("s3.endpoint"),
        path_style=properties.get("s3.path-style-access", "false").lower() == "true",
    )
    return _checked(bucket, location)


def _checked(bucket: Bucket, location: str) -> Storage | str:
    if not bucket.access_key:
        return f"{location} is used without credentials"
    if bucket.path_style and bucket.endpoint is None:
        return f"{location} has path-style access without an endpoint"
    return Storage(bucket)
