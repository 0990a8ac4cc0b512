"""The rows of a batch as those of a lake's files: columns and keys, in Arrow and numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.errors import AccountingError, TargetError

# In the metadata of an Arrow field: its number in a Parquet file.
FIELD_ID: Final = b"PARQUET:field_id"
Places = npt.NDArray[np.int64]


class FileColumn(NamedTuple):
    """A column of a table's Parquet files; ``source`` is its name in the batch, whose key it may be of.

    ``field_id``: None where the table has no field ids.
    """

    name: str
    source: str
    type: pa.DataType
    field_id: int | None
    required: bool
    key: bool

    @property
    def field(self) -> pa.Field:
        """As Arrow writes it."""
        number = None if self.field_id is None else {FIELD_ID: str(self.field_id).encode()}
        return pa.field(self.name, self.type, not self.required, number)


def columns_of(rows: pa.ChunkedArray, columns: Sequence[FileColumn]) -> pa.Table:
    """The columns of a table's files, from structs of the batch's.

    Raises:
        TargetError: a row has no value in a column that takes no NULL.
    """
    arrays = [pc.struct_field(rows, [column.source]).cast(column.type) for column in columns]
    for column, values in zip(columns, arrays, strict=True):
        if column.required and values.null_count:
            raise TargetError(
                f"a row has no value in the column {column.source}, which takes no NULL; nothing was written"
            )
    return pa.table(arrays, schema=pa.schema([column.field for column in columns]))


def matched(rows: pa.Table, keys: pa.Table) -> Places:
    """For each row the number of the key that it has, -1 for none; both have the same columns.

    Columns are compared one after the other: what two columns have together becomes one number.
    """
    at, of = np.zeros(rows.num_rows, np.int64), np.zeros(keys.num_rows, np.int64)
    known = of[:1]
    for name in keys.column_names:
        values = pc.unique(keys[name])
        theirs, own = codes(rows[name], values), codes(keys[name], values)
        if keys.num_columns == 1 and len(values) == keys.num_rows:
            return theirs
        known, of = np.unique(of * len(values) + own, return_inverse=True)
        both = np.where((at >= 0) & (theirs >= 0), at * len(values) + theirs, -1)
        place = np.minimum(np.searchsorted(known, both), max(0, len(known) - 1))
        at = np.where(known[place] == both, place, -1) if len(known) else np.full(rows.num_rows, -1)
    if len(known) != keys.num_rows:
        raise AccountingError("a batch has one key twice; nothing was written")
    number = np.empty(len(known), np.int64)
    number[of] = np.arange(len(known))
    return np.where(at >= 0, number[at], -1) if len(known) else at


def codes(values: pa.ChunkedArray, distinct: pa.Array) -> Places:
    """For each value its number among distinct ones, -1 for none."""
    found: Places = pc.fill_null(pc.index_in(values, value_set=distinct), -1).to_numpy()
    return found.astype(np.int64)
