"""Decoded lines back to records: which codec, under which options, with which schemas.

A flat-avro line that carries schema ids is written with those very schemas, and so under the options
they were built with. The width of BIT, which no schema says, is in the line's extension.
A canal-json line tells the TiDB extension by its ``commit_ts``, full types by ``extension.mysqlType``, and
compression by ``extension.compression``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast, get_args

from tidesink.cli.event_parse import event_of
from tidesink.cli.line_members import Line, table_of
from tidesink.cli.sources import Setting
from tidesink.codecs.base import Codec, CodecOptions, EncodedRecord
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.codecs.canal_json.schema import RowShapes
from tidesink.codecs.compression import Compression
from tidesink.codecs.debezium.codec import DebeziumAvroCodec, DebeziumJsonCodec
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.open import DEBEZIUM_ALIASES
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import row_moment
from tidesink.errors import ConfigError, DecodeError, EncodeError
from tidesink.events import ChangeEvent, DdlEvent, TableSchema, WatermarkEvent
from tidesink.schema_registry import SchemaRegistry

EncodeLine = Callable[[Line], EncodedRecord | None]


def line_encoder(setting: Setting, *, register: bool) -> EncodeLine:
    """What turns a decoded line of the setting's protocol into its record.

    It gives None where the protocol sends nothing for the line. ``register`` lets it register the
    schemas of lines that carry no ids.
    """
    if setting.protocol in DEBEZIUM_ALIASES:
        return DebeziumLines(setting, register=register).encode
    if setting.protocol == "canal-json":
        return CanalJsonLines(setting.options, setting.definitions, setting.declared).encode
    if setting.registry is None:
        raise ConfigError("flat-avro needs its schemas: give --schemas, --schema-registry or --config")
    return FlatAvroLines(setting, setting.registry, register=register).encode


class DebeziumLines:
    """Encodes lines as TiCDC's ``debezium`` protocols; their columns are those of the definitions."""

    def __init__(self, setting: Setting, *, register: bool) -> None:
        self._definitions = setting.definitions
        # A topic that holds watermarks was written with the extension, and Avro's DDL with both options.
        sending = replace(setting.options, enable_tidb_extension=True, avro_enable_watermark=True)
        if setting.protocol == "debezium-avro":
            if setting.registry is None or not register:
                raise ConfigError(
                    "debezium-avro registers the schemas that --table-definition makes: give --register"
                )
            self._codec: Codec = DebeziumAvroCodec(registry=setting.registry, options=setting.options)
            self._control: Codec = DebeziumAvroCodec(registry=setting.registry, options=sending)
        else:
            # DDL is sent with the extension or without, which only the option says.
            self._codec = DebeziumJsonCodec(options=setting.options)
            self._control = DebeziumJsonCodec(options=sending)

    def encode(self, line: Line) -> EncodedRecord | None:
        """The record of one line.

        Raises:
            ConfigError: the line is none that ``decode -o json`` prints.
            EncodeError: nothing defines its table, or TiCDC's protocol cannot write it.
        """
        event = event_of(line, lambda one: _defined(self._definitions, one, told="a Debezium line has none"))
        is_sent = isinstance(event, WatermarkEvent) or (
            isinstance(event, DdlEvent) and self._codec.name == "debezium-avro"
        )
        codec = self._control if is_sent else self._codec
        return codec.encode(event, topic=event.position.topic)


class FlatAvroLines:
    """Encodes lines to flat-avro."""

    def __init__(self, setting: Setting, registry: SchemaRegistry, *, register: bool) -> None:
        self._definitions = setting.definitions
        self._register = register
        self._codec = FlatAvroCodec(registry=registry, options=setting.options)
        # A topic that holds control events was written with both options, whatever is declared.
        sending = replace(setting.options, enable_tidb_extension=True, avro_enable_watermark=True)
        self._control = FlatAvroCodec(registry=registry, options=sending)
        self._schemas: dict[tuple[int, tuple[str, ...]], TableSchema] = {}

    def encode(self, line: Line) -> EncodedRecord | None:
        """The record of one line.

        Raises:
            ConfigError: the line is none that ``decode -o json`` prints.
            EncodeError: the line does not fit its schema, or has no schema to be written with.
            RegistryError: a schema cannot be had or registered.
        """
        event = event_of(line, self._schema_of)
        if not isinstance(event, ChangeEvent):
            return self._control.encode(event, topic=event.position.topic)
        if event.schema_id is not None and event.schema_id != (None, None):
            return self._codec.encode_with_ids(event)
        if not self._register:
            raise EncodeError(
                "the line has no schema_id: give --register to register the schema that "
                "--table-definition makes",
                table=str(event.table),
            )
        return self._codec.encode(event, topic=event.position.topic)

    def _schema_of(self, line: Line) -> TableSchema:
        ids = line.get("schema_id") or {}
        schema_id = ids.get("value") if ids.get("value") is not None else ids.get("key")
        if schema_id is None:
            return _defined(self._definitions, line)
        keys = tuple(line.get("key") or ())
        known = self._schemas.get((schema_id, keys))
        if known is None:
            try:
                known = self._codec.schema_of(schema_id, keys=keys)
            except DecodeError as error:
                raise EncodeError(error.message, schema_id=schema_id) from error
            self._schemas[schema_id, keys] = known
        return known


class CanalJsonLines:
    """Encodes lines to canal-json."""

    def __init__(
        self, options: CodecOptions, definitions: TableDefinitions, declared: Mapping[str, Any]
    ) -> None:
        self._options = options
        self._declared = declared
        self._definitions = definitions
        self._shapes = RowShapes(definitions, None)
        self._codecs: dict[CodecOptions, CanalJsonCodec] = {}

    def encode(self, line: Line) -> EncodedRecord | None:
        """The record of one line.

        Raises:
            ConfigError: the line is none that ``decode -o json`` prints.
            EncodeError: canal-json cannot carry the line.
        """
        event = event_of(line, self._schema_of)
        return self._codec(line).encode(event, topic=event.position.topic)

    def _codec(self, line: Line) -> CanalJsonCodec:
        seen: dict[str, Any] = {"enable_tidb_extension": line.get("commit_ts") is not None}
        extension = line.get("extension") or {}
        types = extension.get("mysqlType")
        seen["output_row_key"] = "rowkey" in (extension.get("_tidb") or {})
        seen["large_message_handle_compression"] = _compression(extension)
        if types:
            seen["content_compatible"] = any("(" in str(word) for word in types.values())
        options = replace(
            self._options, **{name: value for name, value in seen.items() if name not in self._declared}
        )
        codec = self._codecs.get(options)
        if codec is None:
            codec = self._codecs[options] = CanalJsonCodec(options=options, definitions=self._definitions)
        return codec

    def _schema_of(self, line: Line) -> TableSchema:
        table, extension = table_of(line), line.get("extension") or {}
        types = extension.get("mysqlType")
        if types is None and self._definitions.get(table) is None:
            return _defined(self._definitions, line)
        definition = self._definitions.get(table)
        primary = (
            [column.name for column in definition.primary_key] if definition else list(line.get("key") or ())
        )
        row = {**(line.get("before") or {}), **(line.get("after") or {})}
        return self._shapes.find(
            table.schema,
            table.name,
            row=dict.fromkeys(row),
            mysql_type=types or {},
            pk_names=extension.get("pkNames", primary),
            commit_ts=row_moment(line.get("commit_ts"), extension.get("es")),
        ).schema


def _compression(extension: Mapping[str, Any]) -> Compression:
    kind = extension.get("compression", "none")
    if kind not in get_args(Compression):
        raise ConfigError(f"extension.compression must be {' or '.join(get_args(Compression))}")
    return cast("Compression", kind)


_TOLD = "the line has no schema_id and no extension.mysqlType, and no DDL came before it"


def _defined(definitions: TableDefinitions, line: Line, *, told: str = _TOLD) -> TableSchema:
    table = table_of(line)
    schema = definitions.get(table)
    if schema is None:
        raise EncodeError(
            f"nothing says the column types: {told}; give --table-definition FILE",
            table=str(table),
        )
    return schema
