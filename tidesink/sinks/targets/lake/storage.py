"""Opens the files of a lake's table in Python tasks with pyarrow, on a local disk or in an S3 bucket.

In the JVM, Delta and Iceberg open a table's files with Hadoop's ``S3AFileSystem`` or Iceberg's ``S3FileIO``.
``hadoop_storage`` and ``iceberg_storage`` copy the settings of these: endpoint, region, and the current
credentials. If a setting has no exact equivalent in pyarrow, they return a string with the reason. Then
Spark's MERGE writes the table instead of Python tasks, and a history is refused.
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
# Hadoop's settings under fs.s3a. that change how files are stored or how S3 is reached, with the values under
# which pyarrow behaves the same.
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
# Settings of Iceberg's S3FileIO that are copied or can be ignored. With any other setting, Python opens no
# files.
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
# S3 error codes for missing privileges or a wrong bucket. A later attempt would get the same answer.
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
# Number of files that a task opens in a bucket at the same time, because each takes several requests.
_AT_ONCE: Final = 16
_CONNECT_SECONDS: Final = 10.0
# Seconds after a failure during which Python does not try to reach the bucket again.
_TRY_AGAIN_SECONDS: Final = 300.0


class StorageError(TransientTargetError):
    """Python cannot open a file or look up how to open it, but Spark may be able to do so. Nothing of the
    batch was committed.
    """


def local_path(location: str) -> Path:
    """Return the path of a local file from its location, which may begin with ``file:``. It is not
    URL-encoded.
    """
    return Path("/" + location.removeprefix("file:").lstrip("/"))


def is_local(location: str) -> bool:
    """Return True if a location is in the local file system."""
    return location.startswith(("/", "file:/"))


@dataclass(frozen=True)
class Bucket:
    """An S3 bucket and its connection settings. It is pickled and sent to tasks; its repr shows no secret."""

    name: str
    region: str
    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)
    endpoint: str | None = None
    """A URL; None for AWS's own."""
    path_style: bool = False

    def filesystem(self) -> pafs.FileSystem:
        """Return pyarrow's file system for the bucket. Each process creates it once."""
        return _s3_filesystem(self)


@lru_cache(maxsize=16)
def _s3_filesystem(bucket: Bucket) -> pafs.FileSystem:
    parts = urlsplit(bucket.endpoint or "https:")
    # With this option, a small file takes one request instead of three. Older releases have it only in C++.
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
    """Opens a table's files by their locations, on the local disk or in a bucket.

    ``bucket``: the S3 bucket; None for the local disk.
    """

    bucket: Bucket | None = None

    def holds(self, location: str) -> bool:
        """Return True if a file's location is on this disk or in this bucket."""
        if self.bucket is None:
            return is_local(location)
        scheme, _, path = location.partition("://")
        # S3A drops empty parts of a key, but pyarrow refuses them.
        return scheme in S3_SCHEMES and path.startswith(f"{self.bucket.name}/") and "//" not in path

    @contextmanager
    def reading(self, location: str) -> Iterator[pa.NativeFile]:
        """Open an existing file for reading.

        Raises:
            TargetError: S3 refuses access to the file.
            TransientTargetError: the file does not exist.
            StorageError: the file cannot be read for now.
        """
        if self.bucket is None:
            with pa.memory_map(str(local_path(location))) as file:
                yield file
        else:
            with _reported(location), self.bucket.filesystem().open_input_file(_key(location)) as file:
                yield file

    @contextmanager
    def writing(self, location: str) -> Iterator[pa.NativeFile]:
        """Open a new file for writing. A file in a bucket becomes visible when it is closed.

        Raises:
            TargetError: S3 refuses access to the file.
            StorageError: the file cannot be written for now.
        """
        if self.bucket is None:
            local = local_path(location)
            local.parent.mkdir(parents=True, exist_ok=True)
            with pa.OSFile(str(local), "wb") as file:
                yield file
        else:
            with _reported(location), self.bucket.filesystem().open_output_stream(_key(location)) as file:
                yield file

    def each(self, function: Callable[[T], R], files: Sequence[T]) -> list[R]:
        """Call a function for each file, and return the results in order.

        Files of a bucket run in parallel.
        """
        if self.bucket is None or len(files) < 2:
            return [function(file) for file in files]
        with ThreadPoolExecutor(min(_AT_ONCE, len(files))) as pool:
            return [*pool.map(function, files)]

    def reason_unreachable(self, location: str, *, try_again_after: float = _TRY_AGAIN_SECONDS) -> str | None:
        """Return the reason why Python cannot reach the bucket at the moment; None if it can.

        The result is cached. After a failure, the bucket is tested again when some minutes have passed.

        ``location``: a folder in the bucket, used for the test.
        ``try_again_after``: the seconds after a failure during which the bucket is not tested.
        """
        if self.bucket is None:
            return None
        when, reason = _reached.get(self.bucket.name, (-math.inf, "not tried"))
        if reason and time.monotonic() - when > try_again_after:
            try:
                self.bucket.filesystem().get_file_info(_key(location))
                reason = self._remember(None)
            except (OSError, ValueError) as exc:
                reason = self._remember(f"Python cannot reach {location} ({_code(exc)})")
        return reason

    def leave(self, error: StorageError) -> str:
        """Record that Python cannot use the bucket for some minutes, and return the error's message."""
        return str(self._remember(error.message))

    def _remember(self, reason: str | None) -> str | None:
        if self.bucket is not None:
            _reached[self.bucket.name] = time.monotonic(), reason
        return reason


LOCAL: Final = Storage()
# By bucket name: the time of the last attempt to reach it, and the reason of a failure or None.
_reached: dict[str, tuple[float, str | None]] = {}


def _key(location: str) -> str:
    """Return ``bucket/key`` from a file's URL, which is not URL-encoded."""
    return location.partition("://")[2]


def _code(exc: Exception) -> str:
    """Return S3's error code in the text of a pyarrow error. The whole text may contain secrets."""
    match = _AWS_CODE.search(str(exc))
    return f"S3 error {match[1]}" if match else type(exc).__name__


@contextmanager
def _reported(location: str) -> Iterator[None]:
    """Convert pyarrow's errors inside the block to the errors that ``Storage.reading`` documents."""
    try:
        yield
    except FileNotFoundError:
        raise TransientTargetError(
            f"{location} does not exist. Another program may have removed it. The batch is tried again."
        ) from None
    except OSError as exc:
        match = _AWS_CODE.search(str(exc))
        if match and match[1] in _FOR_GOOD:
            raise TargetError(
                f"Python cannot use {location} ({_code(exc)}). Check that the worker's credentials may read "
                "and "
                "write there."
            ) from None
        raise StorageError(f"Python cannot use {location} now ({_code(exc)})") from None


# Settings from the JVM. Each function returns the storage, or the reason as a text why only Spark can open
# the files.


def open_storage(look_up: Callable[[], Storage | str], location: str, *, merges: bool) -> Storage | str:
    """Return the storage of a table's files, or a string with the reason why Python cannot open them now.

    ``look_up``: returns the storage, or a reason that does not pass.
    ``location``: the table's folder.
    ``merges``: True if Spark may write the batch instead. False for a history: it waits until a reason that
        passes no longer holds.

    Raises:
        StorageError: ``merges`` is False, and the settings cannot be looked up now.
    """
    try:
        storage = look_up()
    except StorageError as exc:
        if not merges:
            raise
        return exc.message
    if isinstance(storage, str) or not merges:
        return storage
    return storage.reason_unreachable(location) or storage


def hadoop_storage(location: str, look_up: Callable[[], Any], jvm: Any) -> Storage | str:
    """Return the storage for a location that Hadoop opens, or a string with the reason why Python cannot open
    it.

    ``look_up``: returns Hadoop's Java ``Configuration``. It is asked only if the location does not say where
        it is. ``jvm``: Java's packages (``java_names``).

    Raises:
        StorageError: Hadoop does not return its settings.
    """
    hadoop = jvm.org.apache.hadoop.fs
    named = _SCHEME.match(location)
    scheme = named[1] if named else str(hadoop.FileSystem.getDefaultUri(look_up()).getScheme())
    if scheme == "file":
        return LOCAL
    if named is None or scheme not in S3_SCHEMES:
        return f"only Spark, not Python, can open {scheme} URLs: {location}"
    try:
        return _s3a_storage(location, hadoop.Path(location).getFileSystem(look_up()))
    except SPARK_ERRORS as exc:
        text = f"Hadoop's settings of {location} cannot be looked up ({summary(exc)})"
        raise StorageError(text) from exc


def _s3a_storage(location: str, filesystem: Any) -> Storage | str:
    kind = str(filesystem.getClass().getName())
    if kind != _S3A:
        return f"only Spark, not Python, can open files with {kind}: {location}"
    # Hadoop has merged the settings under fs.s3a.bucket.NAME into these.
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
    """Return the region of a bucket in AWS; None if AWS does not report it.

    The JVM's client finds the region by itself, but pyarrow must know it.
    """
    name = str(filesystem.getUri().getHost())
    if name not in _regions:
        _regions[name] = internals.getBucketMetadata().bucketRegion()
    return _regions[name]


def iceberg_storage(location: str, properties: Mapping[str, str]) -> Storage | str:
    """Return the storage for a location of Iceberg's ``S3FileIO``, or a string with the reason why Python
    cannot open it.

    ``properties``: the catalog's properties.
    """
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
