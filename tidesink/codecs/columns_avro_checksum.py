"""Row checksums on the Spark path: an Arrow function, in the plan only where checksums are asked for.

Spark has no expression for the bits of a float, and an hour that comes twice gives a row several sums; so
the columns' wire values go to the Python that the codec itself uses. They go as one array of bytes, since
pandas would make floats of nullable integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from pyspark import cloudpickle
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.pandas.functions import pandas_udf

from tidesink.codecs import row_checksum_bytes
from tidesink.codecs.columns_avro_record import RecordColumns
from tidesink.codecs.columns_avro_schema import WriterColumn
from tidesink.codecs.columns_faults import null
from tidesink.codecs.row_checksum import CHECKSUM, CORRUPTED, CORRUPTED_REASON, NO_CHECKSUM, summed
from tidesink.codecs.row_checksum_bytes import TEXT_SCALE, Summed, checksum_reason, part_readers

# So that executors need no tidesink: the module travels with the function that uses it.
cloudpickle.register_pickle_by_value(row_checksum_bytes)  # type: ignore[no-untyped-call]

_ARRAY: Final = "array<binary>"


def checksum_faults(records: Sequence[RecordColumns], time_zone: str) -> Column:
    """Why a row is not what its checksum says; null where it is, or has none."""
    asked = [record for record in records if CHECKSUM in record.schema.extension]
    if not asked:
        return null("string")
    corrupted, values = F.lit(False), null(_ARRAY)
    for number, record in enumerate(asked):
        values = F.when(_has_sum(record), _wire_values(number, record)).otherwise(values)
        if CORRUPTED in record.schema.extension:
            corrupted = corrupted | F.coalesce(_extension(record, CORRUPTED), F.lit(False))
    kinds = [tuple(_summed(writer) for writer in record.schema.columns) for record in asked]
    return F.when(corrupted, F.lit(CORRUPTED_REASON)).otherwise(_reasons(values, kinds, time_zone))


def _extension(record: RecordColumns, name: str) -> Column:
    return record.column.getField(record.schema.extension[name])


def _has_sum(record: RecordColumns) -> Column:
    said = _extension(record, CHECKSUM)
    return said.isNotNull() & ~said.isin(*NO_CHECKSUM)


def _wire_values(number: int, record: RecordColumns) -> Column:
    """Which schema, the sum that came with the row, and each column as bytes."""
    said = _extension(record, CHECKSUM).cast("binary")
    columns = (_bytes(record.column.getField(writer.field), writer) for writer in record.schema.columns)
    return F.array(F.lit(str(number)).cast("binary"), said, *columns)


def _bytes(wire: Column, writer: WriterColumn) -> Column:
    if writer.wide or writer.avro == "bytes":
        return wire
    number = wire.cast("double") if writer.avro == "float" else wire
    return number.cast("string").cast("binary")


def _summed(writer: WriterColumn) -> Summed:
    kind, members, scale = summed(writer.column.type)
    return kind, members, scale if writer.wide else TEXT_SCALE


def _reasons(values: Column, kinds: list[tuple[Summed, ...]], time_zone: str) -> Column:
    column: Column = pandas_udf(reason_function(kinds, time_zone), "string")(values)  # type: ignore[call-overload]
    return column


def reason_function(kinds: Sequence[Sequence[Summed]], time_zone: str) -> Callable[[Any], Any]:
    """What Spark's workers run: a series of wire values, as of ``checksum_faults``, to one of reasons."""

    def reason(row: Any, readers: list[Any]) -> str | None:
        if row is None:
            return None
        which, said, *columns = row
        return checksum_reason(said.decode("utf-8", "replace"), readers[int(which)], columns)

    def reasons(batch: Any) -> Any:
        readers = [part_readers(columns, time_zone) for columns in kinds]
        return pd.Series([reason(row, readers) for row in batch], dtype=object)

    import pandas as pd

    # Spark tells what kind of function it is from these.
    reasons.__annotations__ = {"batch": pd.Series, "return": pd.Series}
    return reasons
