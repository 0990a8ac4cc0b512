"""Where claim-check files lie: a local directory, or whatever fsspec knows (S3, GCS, Azure, memory).

A root is configured, and nothing outside of it is ever opened. What a message says is a name under it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from tidesink.errors import ConfigError, RowUnavailableError, SourceUnavailableError

_LOCAL: Final = ("", "file", "local")
# TiCDC's names of a storage (tiflow c7b2588), and fsspec's.
_PROTOCOLS: Final = {"s3a": "s3", "gcs": "gs", "azure": "az", "azblob": "az", "abfs": "az"}
# What TiCDC takes behind the ? of an S3 URI, and what s3fs calls it.
_S3_OPTIONS: Final = {"access-key": "key", "secret-access-key": "secret", "session-token": "token"}
_OPTION: Final = "claim-check-storage-uri"


class ClaimCheckStorage(Protocol):
    """Files by their names under one root."""

    @property
    def location(self) -> str:
        """The root as TiCDC writes it before a file's name; without secrets."""

    def read(self, name: str, *, most: int) -> bytes:
        """A file's bytes.

        Raises:
            RowUnavailableError: there is no such file, it is none to be read, or larger than ``most``.
            SourceUnavailableError: the storage does not answer.
        """

    def write(self, name: str, data: bytes) -> None:
        """Write a new file.

        Raises:
            SourceUnavailableError: the storage does not take it.
        """


def open_storage(uri: str) -> ClaimCheckStorage:
    """The storage that ``claim-check-storage-uri`` names: a path, ``file://``, or a URL that fsspec knows.

    Raises:
        ConfigError: no such storage, or its library is not installed.
    """
    parts = urlsplit(uri)
    if parts.scheme.lower() in _LOCAL:
        return LocalStorage(Path(unquote(parts.path) if parts.scheme else uri).expanduser())
    return RemoteStorage(_PROTOCOLS.get(parts.scheme.lower(), parts.scheme.lower()), uri)


class LocalStorage:
    """Files in one directory and those below it."""

    def __init__(self, root: Path) -> None:
        if not root.is_absolute():
            root = root.absolute()
        self._root = root

    @property
    def location(self) -> str:
        """The directory as a ``file`` URL."""
        return "file://" + self._root.as_posix().rstrip("/")

    def read(self, name: str, *, most: int) -> bytes:
        """A file's bytes; a link is no file of the root, wherever it leads."""
        path = self._root / name
        if path.resolve() != self._root.resolve() / name:
            raise RowUnavailableError(
                f"the claim-check file {name!r} is a symbolic link, which is not followed"
            )
        with _translated(name):
            # Without waiting: a pipe in a file's place must not hold the reader for ever.
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise RowUnavailableError(f"the claim-check file {name!r} is no plain file")
                return _within(file.read(most + 1), name, most)

    def write(self, name: str, data: bytes) -> None:
        """Write a new file; a reader sees it whole or not at all."""
        path = self._root / name
        part = path.with_name(f".{path.name}.part")
        with _translated(name):
            self._root.mkdir(parents=True, exist_ok=True)
            part.write_bytes(data)
            part.rename(path)


class RemoteStorage:
    """Files of a storage that fsspec knows. ``uri`` may hold secrets behind its ``?``."""

    def __init__(self, protocol: str, uri: str) -> None:
        parts = urlsplit(uri)
        self._root = f"{parts.netloc.rpartition('@')[2]}{parts.path}".strip("/")
        self.location = f"{parts.scheme.lower()}://{self._root}"
        self._system = _file_system(protocol, dict(parse_qsl(parts.query)), self.location)

    def read(self, name: str, *, most: int) -> bytes:
        """A file's bytes."""
        with _translated(name), self._system.open(f"{self._root}/{name}", "rb") as file:
            return _within(file.read(most + 1), name, most)

    def write(self, name: str, data: bytes) -> None:
        """Write a new file."""
        with _translated(name):
            self._system.makedirs(self._root, exist_ok=True)
            self._system.pipe_file(f"{self._root}/{name}", data)


def _file_system(protocol: str, given: Mapping[str, str], shown: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(
            f"{shown}: claim-check storage other than a local directory needs the large-messages extra: "
            "pip install 'tidesink[large-messages]'",
            key=_OPTION,
        ) from error
    try:
        return fsspec.filesystem(protocol, **(_s3_options(given) if protocol == "s3" else {}))
    except ImportError as error:
        raise ConfigError(f"{shown}: fsspec lacks a library for {protocol}: {error}", key=_OPTION) from error
    except ValueError as error:
        raise ConfigError(
            f"{shown}: fsspec knows no storage {protocol!r}; give a directory, or a URL such as s3://bucket/path",
            key=_OPTION,
        ) from error


def _s3_options(given: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {name: given[ours] for ours, name in _S3_OPTIONS.items() if ours in given}
    client = {"endpoint_url": given.get("endpoint"), "region_name": given.get("region")}
    kept = {name: value for name, value in client.items() if value}
    return {**options, "client_kwargs": kept} if kept else options


def _within(data: bytes, name: str, most: int) -> bytes:
    if len(data) > most:
        raise RowUnavailableError(
            f"the claim-check file {name!r} is larger than {most} bytes: raise max-decompressed-bytes if the "
            "topic's rows are so large"
        )
    return data


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """A storage's errors as ours. Their texts are left out: an address in them may hold a secret."""
    try:
        yield
    except RowUnavailableError:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise RowUnavailableError(
            f"there is no claim-check file {name!r} in the storage: was it removed before the topic was "
            f"read, or is {_OPTION} another one than the changefeed's?"
        ) from error
    except PermissionError as error:
        raise ConfigError(
            f"the claim-check file {name!r} may not be opened: give the rights to it", key=_OPTION
        ) from error
    except Exception as error:  # each storage's library has errors of its own
        raise SourceUnavailableError(
            f"the claim-check storage does not answer for {name!r}: {type(error).__name__}"
        ) from error
