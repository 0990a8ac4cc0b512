"""The key and value schemas TiCDC builds for a table (tiflow c7b2588 and ticdc b813e76).

Names, order of fields and order of JSON members are the producer's, so that a registry gives the same id.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.flat_avro_default import to_json
from tidesink.codecs.row_checksum import summed_order
from tidesink.errors import EncodeError
from tidesink.events import Column, TableId, TableSchema
from tidesink.schema_registry.naming import sanitize_name, sanitize_namespace
from tidesink.typemap.render import avro_type
from tidesink.typemap.table import EXTENSION_FIELDS

AvroJson = dict[str, Any]

BEFORE: Final = "_ticdc_before"
OP: Final = "_tidb_op"
COMMIT_TS: Final = "_tidb_commit_ts"
PHYSICAL_TIME: Final = "_tidb_commit_physical_time"

_FIELDS: Final = tuple((field.name, field.avro, field.default) for field in EXTENSION_FIELDS)
_OP_FIELDS, _TIME_FIELDS, _CHECKSUM_FIELDS = _FIELDS[:1], _FIELDS[1:3], _FIELDS[3:]
# Go's encoding/json writes these as escapes.
_GO_ESCAPES: Final = {ord(char): f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"}


@dataclass(frozen=True)
class BuiltRecord:
    """An Avro schema and the table's columns behind its fields, in the order of the fields.

    ``summed``: the columns that the row's checksum is over, in its order; empty where it has none.
    """

    schema: AvroJson
    columns: tuple[Column, ...]
    summed: tuple[Column, ...] = ()

    @property
    def text(self) -> str:
        """The schema as the producer registers it."""
        return schema_text(self.schema)


def schema_text(schema: Mapping[str, Any]) -> str:
    """Compact JSON with Go's escapes."""
    return json.dumps(schema, ensure_ascii=False, separators=(",", ":")).translate(_GO_ESCAPES)


def key_record(schema: TableSchema, table: TableId, options: CodecOptions) -> BuiltRecord | None:
    """The schema of a table's Kafka keys; None where the producer writes null keys.

    Classic TiCDC takes the handle key, the new architecture the primary key alone.

    Raises:
        EncodeError: two columns come to the same Avro name.
    """
    columns = schema.primary_key if options.producer == "new" else schema.handle_columns
    return BuiltRecord(_record(table, columns, options), columns) if columns else None


def value_record(schema: TableSchema, table: TableId, options: CodecOptions) -> BuiltRecord:
    """The schema of a table's values, before-image and extension fields included as the options say.

    Raises:
        EncodeError: two fields come to the same Avro name.
    """
    columns = _ordered(_carried(schema.columns, options), options)
    built = _record(table, columns, options)
    if includes_before(options):
        before = _record(table, columns, options, suffix="_before")
        built["fields"].append({"default": None, "name": BEFORE, "type": ["null", before]})
    built["fields"] += [
        {"default": default, "name": name, "type": avro} for name, avro, default in _extension(options)
    ]
    _check_unique(built["fields"], columns)
    summed = summed_order(schema.columns, options) if _has_checksum(options) else ()
    return BuiltRecord(built, columns, tuple(column for column in summed if not column.virtual))


def includes_before(options: CodecOptions) -> bool:
    """Whether values carry the old row: an option that only the new architecture has."""
    return options.avro_include_before_value and options.producer == "new"


def _carried(columns: Iterable[Column], options: CodecOptions) -> tuple[Column, ...]:
    # Classic TiCDC leaves virtual columns out, the new architecture writes them as NULL.
    return tuple(column for column in columns if options.producer == "new" or not column.virtual)


def _ordered(columns: tuple[Column, ...], options: CodecOptions) -> tuple[Column, ...]:
    if not _has_checksum(options):
        return columns
    return tuple(sorted(columns, key=lambda column: column.column_id or 0))


def _has_checksum(options: CodecOptions) -> bool:
    return options.row_checksum and options.enable_tidb_extension


def _extension(options: CodecOptions) -> Sequence[tuple[str, str, object]]:
    if not options.enable_tidb_extension:
        return _OP_FIELDS if includes_before(options) else ()
    checksum = _CHECKSUM_FIELDS if options.row_checksum else ()
    return (*_OP_FIELDS, *_TIME_FIELDS, *checksum)


def _record(table: TableId, columns: Sequence[Column], options: CodecOptions, suffix: str = "") -> AvroJson:
    fields = [_field(column, options) for column in columns]
    _check_unique(fields, columns)
    return {
        "type": "record",
        "name": sanitize_name(table.name) + suffix,
        "namespace": sanitize_namespace(options.namespace, table.schema),
        "fields": fields,
    }


def _field(column: Column, options: CodecOptions) -> AvroJson:
    avro = avro_type(
        column.type,
        decimal_mode=options.avro_decimal_handling_mode,
        unsigned_mode=options.avro_bigint_unsigned_handling_mode,
    )
    parameters: Any = avro["connect.parameters"]
    avro["connect.parameters"] = dict(sorted(parameters.items()))
    name = sanitize_name(column.name)
    default = to_json(column, str(avro["type"]))
    if not column.nullable:
        return {"name": name, "type": avro} if default is None else _defaulted(name, avro, default)
    return _defaulted(name, ["null", avro] if default is None else [avro, "null"], default)


def _defaulted(name: str, avro: object, default: object) -> AvroJson:
    return {"default": default, "name": name, "type": avro}


def _check_unique(fields: Sequence[AvroJson], columns: Sequence[Column]) -> None:
    sources = [column.name for column in columns] + ["the extension"] * (len(fields) - len(columns))
    seen: dict[str, str] = {}
    for field, source in zip(fields, sources, strict=True):
        other = seen.setdefault(field["name"], source)
        if other is not source:
            raise EncodeError(
                f"column {other!r} and {source!r} both come to the Avro field {field['name']!r}: "
                "rename one of them",
                column=other,
            )
