"""What makes a canal-json message whole: decompression, claim-check files, and the upstream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import orjson

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.claim_check import ClaimCheck, open_claim_check
from tidesink.codecs.compression import decompressed
from tidesink.codecs.handle_key import RowsAtCommit, completed
from tidesink.codecs.upstream import open_upstream
from tidesink.errors import RowUnavailableError, SchemaMismatchError

Parsed = dict[str, Any]

_NO_STORAGE: Final = (
    "the row was too large and lies in claim-check storage (large-message-handle-option: claim-check): give "
    "claim-check-storage-uri as the changefeed has it, or a directory that holds the same files"
)


def is_cut_down(extension: Mapping[str, object]) -> bool:
    """Whether ``_tidb`` says that the row's columns are elsewhere."""
    return bool(extension.get("onlyHandleKey") or extension.get("claimCheckLocation"))


class LargeMessages:
    """Makes messages whole by the options. Storage and upstream are opened when they are first needed."""

    def __init__(
        self,
        options: CodecOptions,
        *,
        claims: ClaimCheck | None = None,
        upstream: RowsAtCommit | None = None,
    ) -> None:
        self._options = options
        self._given_claims = claims
        self._given_upstream = upstream

    @cached_property
    def claims(self) -> ClaimCheck | None:
        """The claim-check files, None where no storage is configured.

        Raises:
            ConfigError: no such storage, or its library is not installed.
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
        """The upstream, None where none is configured.

        Raises:
            ConfigError: its URL is none, or there is no driver for it.
        """
        if self._given_upstream is not None or not self._options.upstream_url:
            return self._given_upstream
        return open_upstream(self._options.upstream_url, time_zone=self._options.time_zone)

    def plain(self, value: bytes) -> bytes | None:
        """The text of a compressed value; None for one that is not compressed.

        Raises:
            FramingError: the bytes are damaged, or stand for too many.
        """
        return decompressed(value, most=self._options.max_decompressed_bytes)

    def whole(self, parsed: Parsed, *, key: Sequence[str] = ()) -> Parsed:
        """A row's message with all its columns; ``key``: what the reader needs of a delete.

        Raises:
            RowUnavailableError: the columns are not to be had; says what to configure.
            SchemaMismatchError: a member that is not what it should be.
            SourceUnavailableError: storage or upstream do not answer.
        """
        location, only_key = (parsed["_tidb"].get(name) for name in ("claimCheckLocation", "onlyHandleKey"))
        if location:
            if type(location) is not str:
                raise SchemaMismatchError("'_tidb.claimCheckLocation' must be text")
            return self._claimed(parsed, location)
        if only_key is not True:
            raise SchemaMismatchError("'_tidb.onlyHandleKey' must be true or false")
        return completed(parsed, self.upstream, key=key, full_types=self._options.content_compatible)

    def _claimed(self, pointer: Parsed, location: str) -> Parsed:
        if self.claims is None:
            raise RowUnavailableError(_NO_STORAGE)
        value = self.claims.value(location)
        try:
            found = orjson.loads(self.plain(value) or value)
        except orjson.JSONDecodeError:
            raise SchemaMismatchError("the claim-check file holds no canal-json message") from None
        if not isinstance(found, dict) or not _is_of(found, pointer):
            raise SchemaMismatchError("the claim-check file holds another message than the one that names it")
        return found


def _is_of(found: Parsed, pointer: Parsed) -> bool:
    """Whether a file's message is the whole of the one that points at it."""
    same = all(found.get(name) == pointer.get(name) for name in ("database", "table", "type"))
    extension = found.get("_tidb")
    if not same or not isinstance(extension, dict) or is_cut_down(extension):
        return False
    rows = (found.get("data"), pointer.get("data"))
    whole, cut = (row[0] if isinstance(row, list) and len(row) == 1 else None for row in rows)
    if not isinstance(whole, dict) or not isinstance(cut, dict):
        return False
    return extension.get("commitTs") == pointer["_tidb"].get("commitTs") and cut.items() <= whole.items()
