"""The schemas in debezium-json records: what stands before a payload, or behind it, read once for all.

A record's bytes up to its payload (Kafka Connect 4.3, which writes ``schema`` first) or from its schema on
(TiCDC b813e76, which writes it last) are the same for every record of one writer, so they stand for the
writer as a registry's id does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, NamedTuple

from tidesink.codecs.columns_debezium_json_text import envelope_pattern, row_pattern
from tidesink.codecs.columns_debezium_schema import IMAGES, RecordSchema, WireColumn
from tidesink.codecs.debezium.connect_schema import (
    NO_PARAMETERS,
    ConnectField,
    ConnectSchema,
    ConnectType,
    connect_schema_of_json,
)
from tidesink.errors import DecodeError, SchemaMismatchError

SCHEMA_FIRST: Final = '{"schema":'
THEN_PAYLOAD: Final = ',"payload":'
PAYLOAD_FIRST: Final = '{"payload":'
THEN_SCHEMA: Final = ',"schema":'
# How TiCDC's own schemas begin: Kafka Connect has the fields before the name, and the payload behind.
_TICDCS: Final = f'{THEN_SCHEMA}{{"type":"struct","optional":false,"name":'
_SENT_TYPES: Final[Mapping[str, ConnectType]] = {
    "commit_ts": "int64",
    "start_ts": "int64",
    "cluster_id": "string",
}
# What TiCDC has last in a source block, in the schema with enable-tidb-extension alone (``start_ts`` with an
# option of its own): any of them may be missing.
_SENT: Final[Mapping[str, ConnectField]] = {
    name: ConnectField(name, ConnectSchema(kind, None, None, NO_PARAMETERS, True, None), name)
    for name, kind in _SENT_TYPES.items()
}
_SOURCE: Final = "source"
_ROW: Final = "row"


class Head(NamedTuple):
    """What stands around the payloads of one writer: text before them, and text behind them.

    ``text`` is what was found: all up to the payload, or all from behind it.
    """

    text: str

    @property
    def before(self) -> str:
        """All before the payload."""
        return self.text if self.text.startswith(SCHEMA_FIRST) else PAYLOAD_FIRST

    @property
    def behind(self) -> str:
        """All behind the payload."""
        return "}" if self.text.startswith(SCHEMA_FIRST) else self.text

    def schema(self) -> ConnectSchema:
        """The schema that stands there.

        Raises:
            SchemaMismatchError: it is none of Kafka Connect's.
        """
        first = self.text.startswith(SCHEMA_FIRST)
        start, end = (len(SCHEMA_FIRST), -len(THEN_PAYLOAD)) if first else (len(THEN_SCHEMA), -1)
        try:
            return connect_schema_of_json(json.loads(self.text[start:end]))
        except (ValueError, RecursionError, AttributeError) as error:
            raise SchemaMismatchError(f"the schema is no JSON: {error!s:.120}") from error


@dataclass(frozen=True)
class JsonSchema(RecordSchema):
    """One key or value schema with what stands around its payloads."""

    head: Head = field(kw_only=True)
    connect: ConnectSchema = field(kw_only=True)

    @cached_property
    def pattern(self) -> str:
        """What a payload's text must match to be read in the JVM."""
        if self.kind == _ROW:
            return row_pattern(self.connect)
        return envelope_pattern(self.connect, optional=self.is_ticdc)

    @property
    def row_schema(self) -> ConnectSchema | None:
        """The schema of the row: the key itself, or the new image; None where there is no row."""
        return self.connect if self.kind == _ROW else self.connect.field("after")


def read_heads(texts: Sequence[str], *, key: bool) -> dict[int, JsonSchema]:
    """The schemas that the JVM reads records with, by the place of their text; what it cannot is left out.

    Left out are flattened rows, documents, schema changes and what is no schema: Python reads, or refuses,
    their records.
    """
    found = ((number, _read(Head(text), key=key)) for number, text in enumerate(texts))
    return {number: schema for number, schema in found if schema is not None}


def _read(head: Head, *, key: bool) -> JsonSchema | None:
    try:
        connect = head.schema()
        if connect.type != "struct":
            return None
        schema = _key(head, connect) if key else _value(head, connect)
        if schema is None or not schema.pattern:  # made now: a schema that has none is left out
            return None
    except DecodeError:
        return None
    return schema


def _key(head: Head, connect: ConnectSchema) -> JsonSchema:
    return JsonSchema("row", _wire_columns(connect), head=head, connect=connect)


def _value(head: Head, connect: ConnectSchema) -> JsonSchema | None:
    fields = {one.wire: one.schema for one in connect.fields}
    source = fields.get(_SOURCE)
    if "op" not in fields or "ddl" in fields or source is None or source.type != "struct":
        return None
    names = frozenset(one.wire for one in source.fields)
    images = [fields.get(name) for name in IMAGES]
    if images == [None, None] and "commit_ts" in names:
        return JsonSchema("watermark", (), names, head=head, connect=connect)
    if any(image is None or image.type != "struct" for image in images):
        return None
    if head.text.startswith(_TICDCS):
        connect, names = _as_sent(connect), names | _SENT.keys()
    return JsonSchema("envelope", _wire_columns(fields["after"]), names, head=head, connect=connect)


def _as_sent(envelope: ConnectSchema) -> ConnectSchema:
    """TiCDC's envelope with all that stands in its source blocks, in TiCDC's order."""
    return replace(
        envelope, fields=tuple(_sent(one) if one.wire == _SOURCE else one for one in envelope.fields)
    )


def _sent(source: ConnectField) -> ConnectField:
    told = (one for one in source.schema.fields if one.wire not in _SENT)
    return source._replace(schema=replace(source.schema, fields=(*told, *_SENT.values())))


def _wire_columns(schema: ConnectSchema) -> tuple[WireColumn, ...]:
    # TiCDC (b813e76) lists a virtual column twice: the later one counts, as in the Python codec.
    named = {one.name: WireColumn(f"f{one.wire.encode().hex()}", one) for one in schema.fields}
    return tuple(named.values())


def is_flattened_head(text: str) -> bool:
    """Whether a value's schema is of rows that ExtractNewRecordState flattened."""
    try:
        connect = Head(text).schema()
    except DecodeError:
        return False
    return connect.field(_SOURCE) is None and (connect.name or "").endswith(".Value")
