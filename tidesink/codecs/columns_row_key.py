"""TiDB's row key as column expressions: the same as ``typemap.row_key`` reads, in the JVM."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_base import BAD
from tidesink.codecs.columns_faults import fault
from tidesink.errors import SchemaMismatchError
from tidesink.typemap.target_schema import (
    BASE64_FORM,
    NO_ROW_KEY,
    OTHER_ROW_KEY,
    ROW_ID,
    TABLE_ID,
    TableShape,
)

# The key of a row as its row key says it; null where there is none, or one of another form.
NAMED_ROW: Final = "named_row"
_TEXT: Final = "row_key_text"
_DIGITS: Final = "row_key_digits"
# The bytes as hexadecimal digits: 't', the table's id, '_r', the row's.
_FORM: Final = "^74[0-9A-F]{16}5F72[0-9A-F]{16}$"
# Where each id begins, counted from 1 as SQL does.
_STARTS: Final = {ROW_ID: 23, TABLE_ID: 3}
_ID_DIGITS: Final = 16
_TEXT_LENGTH: Final = 28
_SIGN: Final = -(1 << 63)


def row_key_steps(shape: TableShape) -> list[list[Column]]:
    """Steps that add ``NAMED_ROW`` to a frame of parsed canal-json messages."""
    everything, text, digits = F.col("*"), F.col(_TEXT), F.col(_DIGITS)
    sent = F.when(F.col("row").isNotNull(), F.col("message").getField("_tidb").getField("rowkey"))
    # Java's $ also stands before a newline at the end, which the length tells.
    whole = (F.length(text) == _TEXT_LENGTH) & text.rlike(BASE64_FORM)
    ids = (_number(F.substring(digits, start, _ID_DIGITS)).alias(name) for name, start in _STARTS.items())
    named = F.when(digits.rlike(_FORM), F.struct(*ids)).cast(f"struct<{shape.key_ddl}>")
    return [
        [everything, sent.alias(_TEXT)],
        [everything, F.when(whole, F.hex(F.unbase64(text))).alias(_DIGITS)],
        [everything, named.alias(NAMED_ROW)],
    ]


def row_key_faults() -> list[tuple[Column, Column]]:
    """A row that no row key names."""
    return [
        (F.col(_TEXT).isNull(), fault(BAD, SchemaMismatchError, NO_ROW_KEY)),
        (F.col(NAMED_ROW).isNull(), fault(BAD, SchemaMismatchError, OTHER_ROW_KEY)),
    ]


def _number(digits: Column) -> Column:
    """A number of 64 bits whose sign bit was flipped."""
    return F.conv(digits, _ID_DIGITS, -10).cast("bigint").bitwiseXOR(F.lit(_SIGN))
