"""What flat-avro's bytes are, asked in the JVM: framing, schema ids, control events, delete markers.

The same questions as the Python codec's, with the same answers (TiCDC tiflow c7b2588 and ticdc b813e76).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_avro_record import RecordColumns
from tidesink.codecs.columns_base import BAD, DDL, UNPLANNED, WATERMARK
from tidesink.codecs.columns_faults import fault
from tidesink.codecs.columns_types import lit_binary
from tidesink.errors import FramingError, SchemaMismatchError, SchemaNotFoundError, UnnamedRowError

_MAGIC: Final = b"\x00"
_GLUE_SIZE: Final = 18
_GLUE: Final = "has an AWS Glue schema registry header, and workers read Confluent's alone: "
# How Glue's header begins, as hexadecimal text: whether the payload is compressed stands behind the 03.
GLUE_HEADS: Final = ("0300", "0305")
# By protocol: what to do about records under Glue's header.
UNDER_CONFLUENT: Final = {
    "flat-avro": (
        "give the changefeed a schema-registry URL; tidesink decode and open_codec(glue=...) read such "
        "messages"
    ),
    "debezium-avro": (
        "give the connector Confluent's or Apicurio's AvroConverter in place of AWS's, or the changefeed a "
        "schema-registry URL, and read the topic from the first record that is written so"
    ),
}
# A watermark and a delete marker: a kind and a uint64.
_STAMPED_SIZE: Final = 9
_DDL_TEXTS: Final = ("query", "schema", "table")
_DDL_NUMBERS: Final = ("type", "commitTs")
_NUMBER: Final = r"\A-?[0-9]{1,18}\z"
_BEFORE_VALUE: Final = "set avro-include-before-value=true in the changefeed's sink URI"


class Parts(NamedTuple):
    """The readers of one side of the record, and why others of its schemas cannot be used, by id."""

    records: tuple[RecordColumns, ...]
    refused: Mapping[int, str]
    unknown: Mapping[int, str]

    @property
    def dropped(self) -> dict[int, frozenset[str]]:
        """By schema id the columns, in lower case, that it lacks since they were dropped before it."""
        return {
            schema_id: frozenset(field.target.name.lower() for field in record.fields if field.dropped)
            for record in self.records
            for schema_id in record.ids
        }


def is_marker(value: Column) -> Column:
    """True where the value is a delete marker with a commit_ts of TiDB's; never null."""
    marked = (
        (F.length(value) == _STAMPED_SIZE)
        & (F.substring(value, 1, 1) == lit_binary(b"\3"))
        & (F.substring(value, 2, 1) < lit_binary(b"\x80"))
    )
    return F.coalesce(marked, F.lit(False))


def stamp(value: Column) -> Column:
    """The uint64 behind a value's first byte; null where it is 2^63 or more."""
    return F.conv(F.hex(F.substring(value, 2, 8)), 16, 10).try_cast("bigint")


def control_faults(key: Column, value: Column) -> list[tuple[Column, Column]]:
    """What a record is that holds no row: a DDL, a watermark, or nothing that names one."""
    first = F.substring(value, 1, 1)
    glue = _has_glue_size(value)
    unnamed = (
        "a delete names no row: New-architecture TiCDC writes this for a table without primary key, so "
        f"the delete is lost: {_BEFORE_VALUE}"
    )
    marker = (
        "the value starts with 03 as a delete marker, and is none: a marker has 9 bytes, with a commit_ts"
    )
    is_ddl, is_watermark = first == lit_binary(b"\1"), first == lit_binary(b"\2")
    members = [_ddl_member(value, name).isNotNull() for name in _DDL_TEXTS]
    members += [F.coalesce(_ddl_member(value, name).rlike(_NUMBER), F.lit(False)) for name in _DDL_NUMBERS]
    whole = reduce(Column.__and__, members)
    return [
        (key.isNull() & value.isNull(), fault(BAD, UnnamedRowError, unnamed)),
        ((first == lit_binary(b"\3")) & ~glue & key.isNull(), fault(BAD, UnnamedRowError, unnamed)),
        ((first == lit_binary(b"\3")) & ~glue & ~is_marker(value), fault(BAD, SchemaMismatchError, marker)),
        (
            (is_ddl | is_watermark) & key.isNotNull(),
            fault(BAD, FramingError, "the value starts with a control event's byte, and the key is not null"),
        ),
        (is_watermark & (F.length(value) == _STAMPED_SIZE), fault(WATERMARK)),
        (is_watermark, fault(BAD, SchemaMismatchError, "a watermark has 9 bytes")),
        (is_ddl & whole, fault(DDL)),
        (is_ddl, fault(BAD, SchemaMismatchError, "a DDL event is no JSON object with TiCDC's members")),
    ]


def _ddl_member(value: Column, name: str) -> Column:
    # Not from_json: it has no generated code, and would slow down every row's whole stage.
    return F.get_json_object(F.substring(value, 2, 2**31 - 1).cast("string"), f"$.{name}")


def control_ts() -> Column:
    """The commit_ts of a control event of the judged frame."""
    value = F.col("value_bytes")
    kind = F.col("fault").getField("kind")
    return F.when(kind == WATERMARK, stamp(value)).when(
        kind == DDL, _ddl_member(value, "commitTs").try_cast("bigint")
    )


def _has_glue_size(data: Column) -> Column:
    """Whether bytes that start with 03 can be under AWS Glue's header."""
    return (F.length(data) >= _GLUE_SIZE) & F.substring(data, 2, 1).isin(lit_binary(b"\0"), lit_binary(b"\5"))


def framing_faults(part: str, data: Column, *, protocol: str) -> list[tuple[Column, Column]]:
    """A part without a Confluent header; ``protocol`` says which words to use about it."""
    framed = (F.length(data) >= 5) & (F.substring(data, 1, 1) == lit_binary(_MAGIC))
    other = F.concat(
        F.lit(f"the {part} starts with "),
        F.when(F.length(data) == 0, F.lit("nothing")).otherwise(F.hex(F.substring(data, 1, 8))),
        F.lit(
            f", not with a Confluent header of 5 bytes (00 and the schema id): is the protocol {protocol}?"
        ),
    )
    glue = (F.substring(data, 1, 1) == lit_binary(b"\3")) & _has_glue_size(data)
    shown = F.when(glue, F.lit(f"the {part} {_GLUE}{UNDER_CONFLUENT[protocol]}")).otherwise(other)
    return [(data.isNotNull() & ~framed, fault(BAD, FramingError, shown))]


def schema_faults(part: str, data: Column, parts: Parts) -> list[tuple[Column, Column]]:
    """A part whose schema cannot be used, or is not planned for."""
    reasons = ((SchemaMismatchError, parts.refused), (SchemaNotFoundError, parts.unknown))
    faults = [
        (_starts(data, [schema_id]), fault(BAD, error, f"{part}: {reason}"))
        for error, found in reasons
        for schema_id, reason in found.items()
    ]
    planned = [schema_id for record in parts.records for schema_id in record.ids]
    unknown = ~_starts(data, planned) if planned else F.lit(True)
    return [*faults, (data.isNotNull() & unknown, fault(UNPLANNED, None, f"the {part}'s schema id is new"))]


def _starts(data: Column, ids: Sequence[int]) -> Column:
    headers = [lit_binary(_MAGIC + schema_id.to_bytes(4, "big")) for schema_id in ids]
    return F.substring(data, 1, 5).isin(*headers)


def schema_id_column(data: Column) -> Column:
    """The schema id in a Confluent header, null where there is none."""
    framed = (F.length(data) >= 5) & (F.substring(data, 1, 1) == lit_binary(_MAGIC))
    return F.when(framed, F.conv(F.hex(F.substring(data, 2, 4)), 16, 10).cast("bigint"))


def unreadable(part: str) -> Column:
    """The fault of a payload that is no record of its schema."""
    return fault(
        BAD,
        SchemaMismatchError,
        f"the {part} does not hold what its schema says: it is cut short, goes on too long, or was written "
        "with another schema than its id says",
    )
