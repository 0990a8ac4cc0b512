"""What a golden record leaves out, where it was too large: its claim-check file, and the rows TiDB held."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from tests.golden.vectors import Json, Record, columns_of, schema_of, unbase64
from tidesink.codecs.compression import decompressed
from tidesink.codecs.large_messages import ClaimCheck, LargeMessages
from tidesink.codecs.options import CanalJsonOptions
from tidesink.codecs.upstream import Texts, UpstreamRow
from tidesink.errors import RowUnavailableError
from tidesink.events import TableId
from tidesink.typemap.mysql_types import parse_sql_type
from tidesink.typemap.table import row_of

# The name of a claim-check file is random at the producer.
_FILE_NAME: Final = re.compile(rb"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.json")


def plain(value: bytes) -> bytes:
    """A value without compression."""
    return decompressed(value) or value


def named(value: bytes) -> bytes:
    """A value whose claim-check file has one name for all."""
    return _FILE_NAME.sub(b"file.json", value)


def is_cut_down(record: Record) -> bool:
    """Whether a record has the handle key alone and names no file."""
    return b'"onlyHandleKey":true' in plain(record.message.value or b"")


def large_of(record: Record) -> LargeMessages:
    """What makes a record's message whole, and keeps what is too large when it is written."""
    claims = ClaimCheck(
        HeldFiles(record), raw_value=record.options_of(CanalJsonOptions).claim_check_raw_value
    )
    # A transaction goes to files, which have no large-message handling.
    upstream = None if record.event is None or "rows" in record.event else HeldRows(record.event)
    return LargeMessages(record.options_of(CanalJsonOptions), claims=claims, upstream=upstream)


class HeldFiles:
    """The claim-check file of a record, under the folder that its message names."""

    def __init__(self, record: Record) -> None:
        self.files: dict[str, bytes] = {}
        self.location = str(record.config.get("claim-check-storage-uri") or "file:///claims")
        given = unbase64(record.raw.get("claim_check_b64"))
        if given is not None:
            message = json.loads(plain(record.message.value or b"{}"))
            self.location, _, name = message["_tidb"]["claimCheckLocation"].rpartition("/")
            self.files[name] = given

    def read(self, name: str, *, most: int) -> bytes:
        """A file's bytes."""
        if name not in self.files or len(self.files[name]) > most:
            raise RowUnavailableError(f"no file {name}")
        return self.files[name]

    def write(self, name: str, data: bytes) -> None:
        """Keep a file."""
        self.files[name] = data


class HeldRows:
    """The rows of an event's table as TiDB held them: the new one from its commit_ts, the old one before."""

    def __init__(self, event: Json) -> None:
        self._event = event
        self._schema = schema_of(event)
        self._types = {raw["name"]: parse_sql_type(raw["type"]) for raw in columns_of(event)}

    def row(self, table: TableId, key: Texts, *, commit_ts: int) -> UpstreamRow:
        """The row that a key names, as it was at ``commit_ts``."""
        assert table == self._schema.table
        held = "columns" if commit_ts >= self._event["commit_ts"] else "pre_columns"
        texts = {raw["name"]: self._text(raw) for raw in self._event[held] if raw["name"] in self._types}
        assert key.items() <= texts.items()
        return UpstreamRow(texts, self._types)

    def _text(self, raw: Any) -> str | None:
        binary = row_of(self._types[raw["name"]]).reader == "binary"
        text: str | None = (
            bytes.fromhex(raw["hex"]).decode("latin-1") if binary and "hex" in raw else raw["value"]
        )
        return text
