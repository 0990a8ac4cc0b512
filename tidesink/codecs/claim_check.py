"""Claim check: a row too large for Kafka lies in a file, and its message says where.

TiCDC (tiflow c7b2588, ticdc b813e76) writes a file ``<uuid>.json`` right under ``claim-check-storage-uri``:
``{"key":null,"value":"<base64 of the message's value>"}``, or with ``claim-check-raw-value`` the value as it
is; either is compressed inside as the topic's messages are.

What a message says is never trusted. A location is taken apart into a name, and the name is looked for under
the configured root and nowhere else. TiCDC's own consumer looks at the last part alone, since a storage can
be mounted elsewhere for a reader; so does this one, where that part is a name as TiCDC makes them.
"""

from __future__ import annotations

import base64
import binascii
import re
import uuid
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from tidesink.codecs.claim_check_storage import ClaimCheckStorage, open_storage
from tidesink.codecs.compression import LARGEST, checked_structure
from tidesink.errors import RowUnavailableError, SchemaMismatchError, shown

_PART: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", re.ASCII)
_MADE_NAME: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.json", re.ASCII)
_MOST_LOCATION: Final = 4096
_SAME: Final = {"": "file", "local": "file", "s3a": "s3", "gcs": "gs", "azblob": "azure", "az": "azure"}


class ClaimCheck:
    """Reads and writes claim-check files under one root."""

    def __init__(self, storage: ClaimCheckStorage, *, raw_value: bool = False, most: int = LARGEST) -> None:
        self._storage = storage
        self._raw_value = raw_value
        self._most = most

    def value(self, location: str) -> bytes:
        """The message value that a location stands for, as the producer would have sent it.

        Raises:
            RowUnavailableError: a location outside of the root, or no such file.
            SchemaMismatchError: the file holds no message.
        FramingError: it holds far more than one.
            SourceUnavailableError: the storage does not answer.
        """
        name = name_under(self._storage.location, location)
        # Base64 takes four bytes for three, and the rest of the envelope a few more.
        return _unwrapped(self._storage.read(name, most=self._most * 4 // 3 + 64), name)

    def new_location(self) -> str:
        """A location that no other message has."""
        return f"{self._storage.location}/{uuid.uuid4()}.json"

    def store(self, location: str, value: bytes) -> None:
        """Write a message's value to its location.

        Raises:
            SourceUnavailableError: the storage does not take it.
        """
        data = value
        if not self._raw_value:
            data = b'{"key":null,"value":"' + base64.b64encode(value) + b'"}'
        self._storage.write(location.rpartition("/")[2], data)


def open_claim_check(uri: str, *, raw_value: bool = False, most: int = LARGEST) -> ClaimCheck:
    """Claim-check files under ``claim-check-storage-uri``.

    Raises:
        ConfigError: no such storage, or its library is not installed.
    """
    return ClaimCheck(open_storage(uri), raw_value=raw_value, most=most)


def name_under(root: str, location: str) -> str:
    """The name of a file under the root, which a message calls by ``location``.

    Raises:
        RowUnavailableError: the location leads out of the root, or to another storage.
    """
    scheme, path = _taken_apart(location)
    own, root_path = _taken_apart(root)
    if scheme != own and not (own == "file" and not scheme):
        raise _outside(location, f"is not in a storage of the kind {own}")
    parts = path.split("/")
    if {"", ".", ".."}.intersection(parts):
        raise _outside(location, "is no path that TiCDC writes")
    if path.startswith(f"{root_path}/"):
        name = path[len(root_path) + 1 :]
        if not all(_PART.fullmatch(part) for part in name.split("/")):
            raise _outside(location, "has a name that TiCDC does not give")
        return name
    if not _MADE_NAME.fullmatch(parts[-1]):
        raise _outside(location, "lies outside of claim-check-storage-uri")
    if own != "file" and parts[0] != root_path.split("/")[0]:
        raise _outside(location, "is in another bucket than claim-check-storage-uri")
    return parts[-1]


def _taken_apart(location: str) -> tuple[str, str]:
    """A location's kind of storage, and its path with the bucket before it.

    Some versions of TiCDC clean the path with what stands before it, and write ``file:/dir/name``.
    """
    if len(location) > _MOST_LOCATION:
        raise _outside(location, "is too long")
    try:
        parts = urlsplit(location)
    except ValueError as error:
        raise _outside(location, "is no location") from error
    # Splitting would let line breaks fall silently.
    if parts.query or parts.fragment or "\\" in location or not location.isprintable():
        raise _outside(location, "is no path that TiCDC writes")
    scheme = parts.scheme.lower()
    return _SAME.get(scheme, scheme), f"{parts.netloc}{parts.path}".strip("/")


def _outside(location: str, why: str) -> RowUnavailableError:
    return RowUnavailableError(f"the message's claimCheckLocation {shown(location)} {why}: it is not opened")


def _unwrapped(data: bytes, name: str) -> bytes:
    """The value in a file of either form: a message has no member ``value``, and the envelope has."""
    if not data.startswith(b"{"):
        return data
    try:
        found: Any = orjson.loads(checked_structure(data))
    except orjson.JSONDecodeError as error:
        raise SchemaMismatchError(f"the claim-check file {name!r} is no JSON") from error
    if "value" not in found:
        return data
    try:
        return base64.b64decode(found["value"], validate=True)
    except (TypeError, ValueError, binascii.Error) as error:
        raise SchemaMismatchError(f"the claim-check file {name!r} has a value that is no base64") from error
