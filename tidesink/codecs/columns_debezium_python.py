"""Columns that Spark has no expression for: the Python codec's own reader of that column, under Arrow.

Arrays, maps, structs, geometries, decimals that bring their scale with them or have more digits than
Spark's, and columns that a definition gives a type of its own. A table without such a column has none of
this in its plan. The value goes over as JSON, as Kafka Connect's JsonConverter would have written it, and
comes back as bytes: one that says what it is, then the value's text, or its bytes; of a value that was
refused, the error's name and its message.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from zoneinfo import ZoneInfo

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.pandas.functions import pandas_udf

from tidesink.codecs.base import UNAVAILABLE_PLACEHOLDER, DebeziumModes
from tidesink.codecs.columns_base import BAD
from tidesink.codecs.columns_types import Reading, lit_binary, try_cast
from tidesink.codecs.debezium.connect_schema import ConnectSchema
from tidesink.codecs.debezium.readers import reader_of
from tidesink.codecs.debezium.scalars import WORDS
from tidesink.errors import DecodeError
from tidesink.events import Column as SourceColumn
from tidesink.events import Value
from tidesink.typemap.debezium_types import semantic_type
from tidesink.typemap.parse import target_reader
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import ShapeColumn, TableShape

VALUE: Final = b"\1"
KEEP: Final = b"\2"
ZERO: Final = b"\3"
REFUSED: Final = b"\4"
_MEMBER: Final = "v"

Read = Callable[[str], bytes]


@dataclass(frozen=True)
class ColumnReader:
    """What the reader of one column is made of.

    This goes to the executors, which open it: the functions that read values hold what cannot be sent.
    """

    schema: ConnectSchema
    source: SourceColumn
    shape: TableShape
    modes: DebeziumModes

    def open(self) -> Read:
        """The reader, from the JSON of a value to what comes back."""
        value = reader_of(self.schema, column=self.source, modes=self.modes)
        stored = stored_answer(self.source, self.shape)
        semantic = semantic_type(self.schema.name, self.schema.type)
        coordinates = _coordinates if semantic is not None and semantic.form == "geometry" else None

        def read(text: str) -> bytes:
            try:
                raw = json.loads(text, parse_float=Decimal)[_MEMBER]
                found = value(raw if coordinates is None else coordinates(raw))
                return KEEP if found is UNAVAILABLE_PLACEHOLDER else stored(found)
            except DecodeError as error:
                return REFUSED + f"{type(error).__name__}:{error.message}".encode("utf-8", "replace")

        return read


def python_read(wire: Column, reader: ColumnReader, *, is_json: bool = False) -> Column:
    """The answers of a reader for a column's values, null where the wire has null.

    ``is_json``: the values are JSON texts already.
    """

    def answers(batch: Any) -> Any:
        return batch.map(reader.open(), na_action="ignore").astype(object)

    import pandas as pd

    # Spark tells what kind of function it is from these.
    answers.__annotations__ = {"batch": pd.Series, "return": pd.Series}
    text = F.to_json(F.struct(wire.alias(_MEMBER)), {"ignoreNullFields": "false"})
    if is_json:
        text = F.concat(F.lit(f'{{"{_MEMBER}":'), wire, F.lit("}"))
    column: Column = pandas_udf(answers, "binary")(F.when(wire.isNotNull(), text))  # type: ignore[call-overload]
    return column


def stored_answer(source: SourceColumn, shape: TableShape) -> Callable[[Value], bytes]:
    """What comes back for a column's values, null excepted.

    The function raises ValueOutOfRangeError for a value that no target can store.
    """
    stored = target_reader(source.type, time_zone=ZoneInfo(shape.time_zone), zero_date=shape.zero_date)

    def answer(found: Value) -> bytes:
        held = stored(found)
        if held is None:
            return ZERO
        return VALUE + (held if isinstance(held, bytes) else _text(held).encode("utf-8", "surrogatepass"))

    return answer


def _coordinates(raw: Any) -> Any:
    """A point whose numbers are numbers: JSON has none for an infinity."""
    if not isinstance(raw, dict):
        return raw
    return {name: WORDS.get(one, one) if name in ("x", "y") else one for name, one in raw.items()}


def _text(value: object) -> str:
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def answer_reading(answer: Column, source: SourceColumn, target: ShapeColumn, shape: TableShape) -> Reading:
    """The reading of a column whose answers are in the frame."""
    data = F.when(is_answer(answer, VALUE), F.substring(answer, 2, 2**31 - 2))
    value = data if row_of(source.type).reader == "binary" else try_cast(data.cast("string"), target.spark)
    nulled = shape.zero_date == "null" and not target.key
    return Reading(value, zero=is_answer(answer, ZERO) if nulled else None)


def is_answer(answer: Column, kind: bytes) -> Column:
    """Whether an answer is of this kind; false where there is none."""
    return F.coalesce(F.substring(answer, 1, 1) == lit_binary(kind), F.lit(False))


def refusal(answer: Column, column: str, otherwise: Column) -> Column:
    """The fault of a value that the reader refused, in the reader's own words; else another fault."""
    told = F.decode(F.substring(answer, 2, 2**31 - 2), "UTF-8")
    words = F.substring(told, F.instr(told, ":") + 1, F.lit(2**31 - 1))
    refused = F.struct(
        F.lit(BAD).alias("kind"),
        F.substring_index(told, ":", 1).alias("error"),
        F.concat(F.lit(f"column {column!r}: "), words).alias("reason"),
    )
    return F.when(is_answer(answer, REFUSED), refused).otherwise(otherwise)
