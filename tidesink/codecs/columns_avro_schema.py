"""What flat-avro's writer schemas say, and the bare schema Spark decodes with.

Read here apart from the Python codec, so that each can be held against the other; the two share the
type table alone. Source: TiCDC (tiflow c7b2588) and its new architecture (ticdc b813e76).

The bare schema has neither names nor defaults of the writer's (TiCDC writes defaults that are no Avro).
A first field takes the Confluent header, a last one the mark that the caller puts after the payload:
where it does not come back, the payload was shorter or longer than its schema.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from tidesink.errors import SchemaMismatchError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.typemap.parse import shortest_float32, wire_unsigned
from tidesink.typemap.render import split_allowed
from tidesink.typemap.table import SPARK_MAX_PRECISION, TypeRow, row_of_avro

HEADER_SIZE: Final = 5
MARK_SIZE: Final = 8
HEAD: Final = "head"
MARK: Final = "mark"
BEFORE: Final = "before"

_WIRE_BEFORE: Final = "_ticdc_before"
_EXTENSION: Final = "_tidb_"


@dataclass(frozen=True)
class WriterColumn:
    """A column as one writer schema has it. ``field`` is its name in the bare schema.

    ``wide``: a decimal of more digits than Spark has, left as unscaled bytes.
    """

    field: str
    column: Column
    avro: str
    wide: bool = False


@dataclass(frozen=True)
class WriterSchema:
    """One key or value schema: its columns, its extension fields by name, the bare schema's text.

    ``before`` is true where the record carries the old row (fields named as those of the new one).
    """

    columns: tuple[WriterColumn, ...]
    extension: Mapping[str, str]
    before: bool
    bare: str

    def table_schema(self, table: TableId, keys: frozenset[str]) -> TableSchema:
        """The table as this schema knows it; ``keys`` are the handle columns' lower-case names."""
        columns = (_with_key(writer.column, keys) for writer in self.columns)
        return TableSchema(table, tuple(columns))


def _with_key(column: Column, keys: frozenset[str]) -> Column:
    handle = column.name.lower() in keys
    return Column(column.name, column.type, column.nullable, column.default, handle, primary_key=handle)


def read_schema(text: str) -> WriterSchema:
    """The columns of a writer schema.

    Raises:
        SchemaMismatchError: the text is no record schema as TiCDC writes them.
    """
    try:
        record = json.loads(text)
        fields = record["fields"]
        return _read_fields(fields)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SchemaMismatchError(
            f"this schema is no Avro record as TiCDC registers it ({error!r:.120}): "
            "is the registry the one TiCDC writes to?"
        ) from error


def _read_fields(fields: list[dict[str, Any]]) -> WriterSchema:
    columns: list[WriterColumn] = []
    extension: dict[str, str] = {}
    bare: list[dict[str, object]] = [_fixed(HEAD, HEADER_SIZE)]
    before = False
    for number, field in enumerate(fields):
        name = f"f{number}"
        if field["name"] == _WIRE_BEFORE:
            before = True
            bare.append({"name": BEFORE, "type": ["null", _bare_record(_inner(field["type"])["fields"])]})
            continue
        if _is_extension(field):
            extension[field["name"]] = name
        else:
            columns.append(_column(name, field))
        bare.append({"name": name, "type": _bare(field["type"])})
    bare.append(_fixed(MARK, MARK_SIZE))
    schema = json.dumps({"type": "record", "name": "row", "fields": bare})
    return WriterSchema(tuple(columns), extension, before, schema)


def _fixed(name: str, size: int) -> dict[str, object]:
    return {"name": name, "type": {"type": "fixed", "name": f"{name}_bytes", "size": size}}


def _bare_record(fields: list[dict[str, Any]]) -> dict[str, object]:
    bare = [{"name": f"f{number}", "type": _bare(field["type"])} for number, field in enumerate(fields)]
    return {"type": "record", "name": "old", "fields": bare}


def _is_extension(field: Mapping[str, Any]) -> bool:
    """Extension fields have plain types; a table's own column of such a name has connect.parameters."""
    kind = _inner(field["type"])
    named = str(field["name"]).startswith(_EXTENSION)
    return named and not (isinstance(kind, dict) and "connect.parameters" in kind)


def _inner(kind: Any) -> Any:
    """The type beside null, whichever comes first: the order follows the column's default."""
    if not isinstance(kind, list):
        return kind
    rest = [branch for branch in kind if branch != "null"]
    if len(rest) != 1 or len(kind) != 2:
        raise ValueError(f"a union of {len(kind)} types")
    return rest[0]


def _bare(kind: Any) -> object:
    if isinstance(kind, list):
        return [_bare(branch) for branch in kind]
    if not isinstance(kind, dict):
        return kind
    if kind.get("logicalType") != "decimal" or int(kind["precision"]) > SPARK_MAX_PRECISION:
        return kind["type"]
    # Spark fails the whole record, or wraps, where a number has more digits than its schema says: taken
    # in with all the digits there are, it can be refused by its column's name.
    scale = int(kind.get("scale", 0))
    return {"type": "bytes", "logicalType": "decimal", "precision": SPARK_MAX_PRECISION, "scale": scale}


def _column(name: str, field: Mapping[str, Any]) -> WriterColumn:
    kind = _inner(field["type"])
    kind = kind if isinstance(kind, dict) else {"type": kind}
    avro, parameters = str(kind["type"]), kind.get("connect.parameters", {})
    row = row_of_avro(str(parameters.get("tidb_type", "")), avro)
    if row is None:
        raise ValueError(f"field {field['name']}: tidb_type {parameters.get('tidb_type')} as Avro {avro}")
    column_type = _column_type(row, kind, parameters)
    decimal = row.reader == "decimal" and avro == "bytes"
    column = Column(
        str(field["name"]),
        column_type,
        nullable=isinstance(field["type"], list),
        default=_default(field.get("default"), row, avro),
    )
    wide = decimal and (column_type.precision or 0) > SPARK_MAX_PRECISION
    return WriterColumn(name, column, "decimal" if decimal and not wide else avro, wide)


def _column_type(row: TypeRow, kind: Mapping[str, Any], parameters: Mapping[str, str]) -> ColumnType:
    if row.parameter == "length":
        return ColumnType(row.name, length=int(parameters.get("length", 64)))
    if row.parameter == "allowed":
        return ColumnType(row.name, members=split_allowed(parameters.get("allowed", "")))
    if kind.get("logicalType") == "decimal":
        return ColumnType(row.name, precision=int(kind["precision"]), scale=int(kind.get("scale", 0)))
    return ColumnType(row.name)


def _default(value: object, row: TypeRow, avro: str) -> str | None:
    """A default's text as TiDB holds it; bytes, which TiCDC writes as base64, as U+0000 to U+00FF."""
    if value is None:
        return None
    if avro == "bytes":
        try:
            return base64.b64decode(str(value), validate=True).decode("latin-1")
        except binascii.Error:
            return None
    if row.reader == "unsigned64" and isinstance(value, int):
        return str(wire_unsigned(value))
    if row.reader == "float32" and isinstance(value, (int, float)):
        return repr(shortest_float32(value))
    return str(value)
