"""Adds the missing columns to canal-json messages whose row was too large for Kafka.

TiCDC handles such a row in one of two ways (tiflow c7b2588, ticdc b813e76).

Claim check: TiCDC writes the complete message to a file, and the message in Kafka has the file's location.
The file ``<uuid>.json`` is directly under ``claim-check-storage-uri``. It contains
``{"key":null,"value":"<base64 of the message's value>"}``, or with ``claim-check-raw-value`` the value
itself. The value in the file is compressed like the topic's messages. The storage is a local directory, or
a storage that fsspec supports (S3, GCS, Azure, memory).

A location in a message is not trusted: only files under the configured root are read. A reader may mount the
storage elsewhere than TiCDC. So if the location is not under the root, the file with the location's last part
as its name is read from the root, provided that the name has the form of TiCDC's file names. TiCDC's own
consumer does the same.

Handle key only: the message has only the row's handle key columns, and ``_tidb.onlyHandleKey`` is true. The
row is read from the upstream TiDB as of its commit_ts, and the old row of an update as of ``commit_ts - 1``.
A delete is used without a query, unless the reader needs key columns that the message does not have.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

import orjson

from tidesink.codecs.compression import LARGEST, checked_structure, decompressed
from tidesink.codecs.options import CanalJsonOptions
from tidesink.codecs.upstream import Texts, UpstreamRow, open_upstream
from tidesink.errors import (
    ConfigError,
    RowUnavailableError,
    SchemaMismatchError,
    SourceUnavailableError,
    shown,
)
from tidesink.events import ColumnType, TableId, fold_name
from tidesink.typemap.table import mysql_type_text, mysql_type_word

Parsed = dict[str, Any]

_NO_STORAGE: Final = (
    "The row was too large for Kafka, so TiCDC stored it in a claim-check file (large-message-handle-option: "
    "claim-check). Set claim-check-storage-uri as in the changefeed, or to a directory with the same files."
)


def is_cut_down(extension: Mapping[str, object]) -> bool:
    """Returns True if a message lacks columns of its row, which was too large for Kafka.

    ``extension``: the message's member ``_tidb``.
    """
    return bool(extension.get("onlyHandleKey") or extension.get("claimCheckLocation"))


class LargeMessages:
    """Decompresses messages, and adds the columns that are missing in messages of large rows.

    ``options``: settings of the claim-check storage and the upstream database, which are opened on first use.
    ``claims`` and ``upstream``: storage and database to use instead of those in the options.
    """

    def __init__(
        self,
        options: CanalJsonOptions,
        *,
        claims: ClaimCheck | None = None,
        upstream: RowsAtCommit | None = None,
    ) -> None:
        self._options = options
        self._given_claims = claims
        self._given_upstream = upstream

    @cached_property
    def claims(self) -> ClaimCheck | None:
        """Access to the claim-check files, or None if no claim-check storage is configured.

        Raises:
            ConfigError: The storage's URI is not supported, or its library is not installed.
        """
        options = self._options
        if self._given_claims is not None or not options.claim_check_storage_uri:
            return self._given_claims
        return open_claim_check(
            options.claim_check_storage_uri,
            raw_value=options.claim_check_raw_value,
            most=options.max_decompressed_bytes,
        )

    @cached_property
    def upstream(self) -> RowsAtCommit | None:
        """The upstream database, or None if no upstream is configured.

        Raises:
            ConfigError: The upstream's URL is not valid, or its driver is not installed.
        """
        if self._given_upstream is not None or not self._options.upstream_url:
            return self._given_upstream
        return open_upstream(self._options.upstream_url, time_zone=self._options.time_zone)

    def plain(self, value: bytes) -> bytes | None:
        """Returns a record's value decompressed, or None if the value is not compressed.

        Raises:
            FramingError: The compressed bytes are damaged, or decompress to more bytes than the limit.
        """
        return decompressed(value, most=self._options.max_decompressed_bytes)

    def whole(self, parsed: Parsed, *, key: Sequence[str] = ()) -> Parsed:
        """Returns the complete message of a row whose message omits columns.

        ``parsed``: the incomplete message, as it is in Kafka. ``key``: columns that the caller needs if the
        row change is a delete.

        Raises:
            RowUnavailableError: The columns are not available. The error text names the setting to change.
            SchemaMismatchError: A member of the message is not valid.
            SourceUnavailableError: The claim-check storage or the upstream database does not answer.
        """
        location, only_key = (parsed["_tidb"].get(name) for name in ("claimCheckLocation", "onlyHandleKey"))
        if location:
            if type(location) is not str:
                raise SchemaMismatchError("The message's '_tidb.claimCheckLocation' must be text.")
            return self._claimed(parsed, location)
        if only_key is not True:
            raise SchemaMismatchError("The message's '_tidb.onlyHandleKey' must be true or false.")
        return completed(parsed, self.upstream, key=key, full_types=self._options.content_compatible)

    def _claimed(self, pointer: Parsed, location: str) -> Parsed:
        if self.claims is None:
            raise RowUnavailableError(_NO_STORAGE)
        value = self.claims.value(location)
        try:
            message = orjson.loads(self.plain(value) or value)
        except orjson.JSONDecodeError:
            raise SchemaMismatchError(
                "The claim-check file does not contain a canal-json message. Check what wrote the file."
            ) from None
        if not isinstance(message, dict) or not _is_of(message, pointer):
            raise SchemaMismatchError(
                "The claim-check file contains a different message than the record that refers to it. Check "
                "that claim-check-storage-uri is the changefeed's."
            )
        return message


def _is_of(message: Parsed, pointer: Parsed) -> bool:
    """Returns True if ``message``, from a file, is the complete form of ``pointer``, the message in Kafka."""
    same = all(message.get(name) == pointer.get(name) for name in ("database", "table", "type"))
    extension = message.get("_tidb")
    if not same or not isinstance(extension, dict) or is_cut_down(extension):
        return False
    rows = (message.get("data"), pointer.get("data"))
    whole, cut = (row[0] if isinstance(row, list) and len(row) == 1 else None for row in rows)
    if not isinstance(whole, dict) or not isinstance(cut, dict):
        return False
    return extension.get("commitTs") == pointer["_tidb"].get("commitTs") and cut.items() <= whole.items()


_PART: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)
_MADE_NAME: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.json", re.ASCII)
_MOST_LOCATION: Final = 4096
_SAME: Final = {"": "file", "local": "file", "s3a": "s3", "gcs": "gs", "azblob": "azure", "az": "azure"}


class ClaimCheck:
    """Reads and writes claim-check files under the root of a storage.

    ``raw_value``: True to write a record's value itself, False to write it in base64 inside a JSON object.
    ``most``: maximum size of a value in bytes.
    """

    def __init__(self, storage: ClaimCheckStorage, *, raw_value: bool = False, most: int = LARGEST) -> None:
        self._storage = storage
        self._raw_value = raw_value
        self._most = most

    def value(self, location: str) -> bytes:
        """Returns the record value in the claim-check file at a location, as TiCDC would have sent it.

        Raises:
            RowUnavailableError: The location is outside of the root, or the file does not exist.
            SchemaMismatchError: The file does not contain a message.
            FramingError: The file contains more JSON objects than a message can have.
            SourceUnavailableError: The storage does not answer.
        """
        name = name_under(self._storage.location, location)
        # Base64 needs four bytes for three, and the rest of the envelope a few more.
        return _unwrapped(self._storage.read(name, most=self._most * 4 // 3 + 64), name)

    def new_location(self) -> str:
        """Returns a unique location for a new claim-check file."""
        return f"{self._storage.location}/{uuid.uuid4()}.json"

    def store(self, location: str, value: bytes) -> None:
        """Writes the value of a record to the claim-check file at a location.

        Raises:
            SourceUnavailableError: The storage did not accept the file.
        """
        data = value
        if not self._raw_value:
            data = b'{"key":null,"value":"' + base64.b64encode(value) + b'"}'
        self._storage.write(location.rpartition("/")[2], data)


def open_claim_check(uri: str, *, raw_value: bool = False, most: int = LARGEST) -> ClaimCheck:
    """Opens the claim-check files under ``claim-check-storage-uri``.

    ``raw_value``: value of ``claim-check-raw-value``. ``most``: maximum size of a record's value in bytes.

    Raises:
        ConfigError: The storage's URI is not supported, or its library is not installed.
    """
    return ClaimCheck(open_storage(uri), raw_value=raw_value, most=most)


def name_under(root: str, location: str) -> str:
    """Returns the name, relative to ``root``, of the claim-check file at a message's location.

    Raises:
        RowUnavailableError: The location is outside of the root, or it does not have the form that TiCDC
            writes.
    """
    scheme, path = _taken_apart(location)
    own, root_path = _taken_apart(root)
    if scheme != own and not (own == "file" and not scheme):
        raise _outside(location, f"is not in a storage of type {own}, as claim-check-storage-uri is")
    parts = path.split("/")
    if {"", ".", ".."}.intersection(parts):
        raise _outside(location, "is not a path that TiCDC writes")
    if path.startswith(f"{root_path}/"):
        name = path[len(root_path) + 1 :]
        if not all(_PART.fullmatch(part) for part in name.split("/")):
            raise _outside(location, "has a name that TiCDC does not write")
        return name
    if not _MADE_NAME.fullmatch(parts[-1]):
        raise _outside(location, "is outside of claim-check-storage-uri")
    if own != "file" and parts[0] != root_path.split("/")[0]:
        raise _outside(location, "is in a different bucket than claim-check-storage-uri")
    return parts[-1]


def _taken_apart(location: str) -> tuple[str, str]:
    """Splits a location into the type of its storage, such as ``s3``, and its path with the bucket.

    Some versions of TiCDC write ``file:/dir/name`` instead of ``file:///dir/name``.

    Raises:
        RowUnavailableError: The location does not have the form that TiCDC writes.
    """
    if len(location) > _MOST_LOCATION:
        raise _outside(location, "is too long")
    try:
        parts = urlsplit(location)
    except ValueError as error:
        raise _outside(location, "is not a valid location") from error
    # urlsplit silently drops line breaks, so the location is checked for them.
    if parts.query or parts.fragment or "\\" in location or not location.isprintable():
        raise _outside(location, "is not a path that TiCDC writes")
    scheme = parts.scheme.lower()
    return _SAME.get(scheme, scheme), f"{parts.netloc}{parts.path}".strip("/")


def _outside(location: str, why: str) -> RowUnavailableError:
    return RowUnavailableError(
        f"The claim-check file was not opened, because the message's claimCheckLocation {shown(location)} "
        f"{why}. Check that claim-check-storage-uri is the changefeed's."
    )


def _unwrapped(data: bytes, name: str) -> bytes:
    """Returns the record value in the bytes of a claim-check file.

    ``data``: the bytes. If they are a JSON object with the member ``value``, this member has the record value
    in base64. Otherwise the bytes are the record value itself.
    """
    if not data.startswith(b"{"):
        return data
    try:
        parsed: Any = orjson.loads(checked_structure(data))
    except orjson.JSONDecodeError as error:
        raise SchemaMismatchError(f"The claim-check file {name!r} is not JSON.") from error
    if "value" not in parsed:
        return data
    try:
        return base64.b64decode(parsed["value"], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise SchemaMismatchError(f"The value in the claim-check file {name!r} is not base64.") from error


_LOCAL: Final = ("", "file", "local")
# TiCDC's names of a storage (tiflow c7b2588), and fsspec's.
_PROTOCOLS: Final = {"s3a": "s3", "gcs": "gs", "azure": "az", "azblob": "az", "abfs": "az"}
# TiCDC's query parameters of an S3 URI, and their names in s3fs.
_S3_OPTIONS: Final = {"access-key": "key", "secret-access-key": "secret", "session-token": "token"}
_OPTION: Final = "claim-check-storage-uri"


class ClaimCheckStorage(Protocol):
    """Reads and writes claim-check files by their names, which are relative to one root."""

    @property
    def location(self) -> str:
        """URL of the root without secrets, as TiCDC writes it before a file's name."""

    def read(self, name: str, *, most: int) -> bytes:
        """Returns the bytes of the file with this name.

        Raises:
            RowUnavailableError: The file does not exist, is not a regular file, or has more than ``most``
                bytes.
            ConfigError: The permission to read the file is missing.
            SourceUnavailableError: The storage does not answer.
        """

    def write(self, name: str, data: bytes) -> None:
        """Writes a new file with this name.

        Raises:
            ConfigError: The permission to write the file is missing.
            SourceUnavailableError: The storage did not accept the file.
        """


def open_storage(uri: str) -> ClaimCheckStorage:
    """Opens the storage that ``claim-check-storage-uri`` names.

    ``uri``: a local path, a ``file://`` URL, or a URL of a storage that fsspec supports.

    Raises:
        ConfigError: fsspec does not support the storage, or its library is not installed.
    """
    parts = urlsplit(uri)
    if parts.scheme.lower() in _LOCAL:
        return LocalStorage(Path(unquote(parts.path) if parts.scheme else uri).expanduser())
    return RemoteStorage(_PROTOCOLS.get(parts.scheme.lower(), parts.scheme.lower()), uri)


class LocalStorage:
    """Claim-check files in a local directory and its subdirectories."""

    def __init__(self, root: Path) -> None:
        if not root.is_absolute():
            root = root.absolute()
        self._root = root

    @property
    def location(self) -> str:
        """The directory as a ``file`` URL."""
        return "file://" + self._root.as_posix().rstrip("/")

    def read(self, name: str, *, most: int) -> bytes:
        """Returns the bytes of the file with this name.

        Raises:
            RowUnavailableError: The file does not exist, is a symbolic link or no regular file, or has more
                than ``most`` bytes.
            ConfigError: The permission to read the file is missing.
            SourceUnavailableError: The file cannot be read.
        """
        path = self._root / name
        if path.resolve() != self._root.resolve() / name:
            raise RowUnavailableError(
                f"The claim-check file {name!r} is a symbolic link, which is not followed. Replace the link "
                "by the file itself."
            )
        with _translated(name):
            # Opened without blocking, because a pipe instead of a file would block the reader forever.
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(handle, "rb") as file:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise RowUnavailableError(f"The claim-check file {name!r} is not a regular file.")
                return _within(file.read(most + 1), name, most)

    def write(self, name: str, data: bytes) -> None:
        """Writes a new file under a temporary name and renames it, so that no reader sees it incomplete."""
        path = self._root / name
        part = path.with_name(f".{path.name}.part")
        with _translated(name):
            self._root.mkdir(parents=True, exist_ok=True)
            part.write_bytes(data)
            part.rename(path)


class RemoteStorage:
    """Claim-check files in a storage that fsspec supports.

    ``protocol``: fsspec's name of the storage type, such as ``s3``. ``uri``: URL of the root; its query may
    contain secrets.
    """

    def __init__(self, protocol: str, uri: str) -> None:
        parts = urlsplit(uri)
        self._root = f"{parts.netloc.rpartition('@')[2]}{parts.path}".strip("/")
        self.location = f"{parts.scheme.lower()}://{self._root}"
        self._system = _file_system(protocol, dict(parse_qsl(parts.query)), self.location)

    def read(self, name: str, *, most: int) -> bytes:
        """Returns the bytes of the file with this name."""
        with _translated(name), self._system.open(f"{self._root}/{name}", "rb") as file:
            return _within(file.read(most + 1), name, most)

    def write(self, name: str, data: bytes) -> None:
        """Writes a new file with this name."""
        with _translated(name):
            self._system.makedirs(self._root, exist_ok=True)
            self._system.pipe_file(f"{self._root}/{name}", data)


def _file_system(protocol: str, given: Mapping[str, str], shown: str) -> Any:
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(
            f"{shown}: Claim-check storage other than a local directory needs the large-messages extra. Run "
            "pip install 'tidesink[large-messages]'.",
            key=_OPTION,
        ) from error
    try:
        return fsspec.filesystem(protocol, **(_s3_options(given) if protocol == "s3" else {}))
    except ImportError as error:
        raise ConfigError(
            f"{shown}: The library that fsspec needs for {protocol} is not installed: {error}. Install it.",
            key=_OPTION,
        ) from error
    except ValueError as error:
        raise ConfigError(
            f"{shown}: fsspec does not support the storage type {protocol!r}. Set a local directory, or a "
            "URL such as s3://bucket/path.",
            key=_OPTION,
        ) from error


def _s3_options(given: Mapping[str, str]) -> dict[str, Any]:
    options: dict[str, Any] = {name: given[ours] for ours, name in _S3_OPTIONS.items() if ours in given}
    client = {"endpoint_url": given.get("endpoint"), "region_name": given.get("region")}
    client_options = {name: value for name, value in client.items() if value}
    return {**options, "client_kwargs": client_options} if client_options else options


def _within(data: bytes, name: str, most: int) -> bytes:
    if len(data) > most:
        raise RowUnavailableError(
            f"The claim-check file {name!r} is larger than {most} bytes. Raise max-decompressed-bytes if "
            "the topic's rows are that large."
        )
    return data


@contextmanager
def _translated(name: str) -> Iterator[None]:
    """While the block runs, replaces errors of the storage's library by tidesink's errors about a file.

    ``name``: name of the file. The original error texts are not shown, because a URL in them may contain a
    secret.
    """
    try:
        yield
    except RowUnavailableError:
        raise
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise RowUnavailableError(
            f"The storage has no claim-check file {name!r}. Check that {_OPTION} is the changefeed's. If it "
            "is, the file was removed before the topic was read."
        ) from error
    except PermissionError as error:
        raise ConfigError(
            f"tidesink has no permission for the claim-check file {name!r}. Grant it in the storage.",
            key=_OPTION,
        ) from error
    except Exception as error:  # each storage's library has errors of its own
        raise SourceUnavailableError(
            f"The claim-check storage does not answer for the file {name!r}: {type(error).__name__}. Check "
            "that the storage can be reached, and check claim-check-storage-uri."
        ) from error


_NO_UPSTREAM = (
    "The row was too large for Kafka and was reduced to its handle key (large-message-handle-option: "
    "handle-key-only), so its other columns are not in the topic. Set upstream-url to read them from TiDB, "
    "or raise max-message-bytes in the changefeed."
)


class RowsAtCommit(Protocol):
    """A database that returns rows as of a commit_ts. ``codecs.upstream.Upstream`` implements it."""

    def row(self, table: TableId, key: Texts, *, commit_ts: int) -> UpstreamRow:
        """Returns the row with this key as of ``commit_ts`` (a TiDB TSO)."""


def completed(
    parsed: Parsed, upstream: RowsAtCommit | None, *, key: Sequence[str] = (), full_types: bool = False
) -> Parsed:
    """Returns a message that had only its row's handle key, with all columns read from the upstream TiDB.

    ``upstream``: the upstream TiDB, or None. ``key``: columns that the caller needs if the row change is a
    delete. ``full_types``: True to return type names with length and precision (``content-compatible``). They
    are also returned if the message's own type names have them.

    Raises:
        RowUnavailableError: No upstream is configured, or the upstream does not have the row.
        SchemaMismatchError: A member of the message is not valid.
        SourceUnavailableError: The upstream does not answer.
    """
    kind, data = parsed["type"], _only_row(parsed, "data")
    deletes = kind == "DELETE"
    if deletes and (upstream is None or {*map(fold_name, key)} <= {*map(fold_name, data)}):
        return parsed
    if upstream is None:
        raise RowUnavailableError(_NO_UPSTREAM)
    table, commit_ts = _table(parsed), _commit_ts(parsed)
    row = upstream.row(table, _texts(data), commit_ts=commit_ts - 1 if deletes else commit_ts)
    old = None
    if kind == "UPDATE":
        before = {**data, **_only_row(parsed, "old")}
        was = upstream.row(table, _texts(before), commit_ts=commit_ts - 1).texts
        old = [{name: text for name, text in was.items() if name in row.texts}]
    members = {name: value for name, value in parsed["_tidb"].items() if name != "onlyHandleKey"}
    words = _words(row.types, full=full_types or _has_full_types(parsed))
    return {
        **parsed,
        "data": [row.texts],
        "old": old,
        "sqlType": None,
        "mysqlType": words,
        "_tidb": members,
    }


def _only_row(parsed: Parsed, member: str) -> dict[str, Any]:
    rows = parsed.get(member)
    if type(rows) is not list or len(rows) != 1 or type(rows[0]) is not dict:
        raise SchemaMismatchError(
            f"The member {member!r} of a row that was reduced to its handle key must be a list of one object."
        )
    return rows[0]


def _texts(row: Mapping[str, Any]) -> Texts:
    for name, text in row.items():
        if text is not None and type(text) is not str:
            raise SchemaMismatchError(
                "canal-json values must be text or null. Check what wrote the message.", column=name
            )
    return row


def _table(parsed: Parsed) -> TableId:
    database, name = parsed.get("database"), parsed.get("table")
    if not (type(database) is str and type(name) is str and database and name):
        raise SchemaMismatchError(
            "The message names no table. Its 'database' and 'table' must be non-empty texts."
        )
    return TableId(database, name)


def _commit_ts(parsed: Parsed) -> int:
    value = parsed["_tidb"].get("commitTs")
    if type(value) is not int or not 0 < value < 2**63:
        raise SchemaMismatchError(
            "The row was reduced to its handle key, but its message has no valid '_tidb.commitTs', which is "
            "needed to read the other columns from the upstream."
        )
    return value


def _has_full_types(parsed: Parsed) -> bool:
    words = parsed.get("mysqlType")
    return type(words) is dict and any("(" in word for word in words.values() if type(word) is str)


def _words(types: Mapping[str, ColumnType], *, full: bool) -> dict[str, str]:
    return {name: _word(column_type, full=full) for name, column_type in types.items()}


def _word(column_type: ColumnType, *, full: bool) -> str:
    text = mysql_type_text(column_type) if full else None
    return mysql_type_word(column_type) if text is None else text
