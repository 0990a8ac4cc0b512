"""TiCDC's row checksum: computed for a row, and held against the one that came with it.

Classic TiCDC sums the columns by column id, which is the order of the Avro fields; the new architecture
sums them in table order and sorts the fields by id all the same (tiflow c7b2588, ticdc b813e76). Where the
two orders differ, as after ``ADD COLUMN ... FIRST``, the wire does not tell the new architecture's, so that
its rows cannot be distinguished from damaged ones. No other order is tried: a sum that fits some order
would also
fit rows whose values were swapped, which is what that producer does to such tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.row_checksum_bytes import Summed, checksum_reason, part_readers, row_sums
from tidesink.errors import EncodeError
from tidesink.events import ChangeEvent, Column, ColumnType, Row
from tidesink.typemap.table import Reader, row_of

CHECKSUM: Final = "_tidb_row_level_checksum"
CORRUPTED: Final = "_tidb_corrupted"
VERSION: Final = "_tidb_checksum_version"
# What current TiDB stores; the sum on the wire is computed the same for all.
CURRENT_VERSION: Final = 2
# A row of which TiDB keeps no checksum, and the half of a split update.
NO_CHECKSUM: Final = ("", "0")

CORRUPTED_REASON: Final = (
    "TiCDC marks the row as corrupted (_tidb_corrupted): it did not match the checksum TiDB keeps of it. "
    "Look at the row in TiDB (ADMIN CHECK TABLE)"
)
_KINDS: Final[Mapping[Reader, str]] = {
    "integer": "integer",
    "unsigned64": "integer",
    "float32": "float",
    "float64": "float",
    "decimal": "decimal",
    "binary": "bytes",
    "bit": "bit",
    "enum": "enum",
    "set": "set",
    "timestamp": "timestamp",
}


def summed(column_type: ColumnType) -> Summed:
    """How a column of this type goes into the sum."""
    row = row_of(column_type)
    kind = "vector" if row.name == "vector" else _KINDS.get(row.reader, "text")
    return kind, column_type.members or (), column_type.scale or 0


def checksum_of(columns: Sequence[Column], row: Row, *, time_zone: str = "UTC") -> int:
    """The sum of a row over ``columns`` in this order; of an hour that comes twice, the first is meant.

    Raises:
        EncodeError: a value is none of its column's type.
    """
    return RowSums(columns, time_zone).sum(row)


def _summed_column(column: Column) -> Summed:
    return summed(column.type)


def summed_order(columns: Iterable[Column], options: CodecOptions) -> tuple[Column, ...]:
    """The columns in the order the producer sums them, of the columns in table order."""
    if options.producer == "new":
        return tuple(columns)
    return tuple(sorted(columns, key=lambda column: column.column_id or 0))


class RowSums:
    """Sums the rows of one table, or checks those of one writer schema, over ``columns`` in this order."""

    def __init__(self, columns: Sequence[Column], time_zone: str) -> None:
        self._names = tuple(column.name for column in columns)
        self._readers = part_readers(map(_summed_column, columns), time_zone)

    def sum(self, row: Row) -> int:
        """The sum of a row; of an hour that comes twice, the first is meant.

        Raises:
            EncodeError: a value is none of its column's type.
        """
        try:
            return row_sums(self._readers, [row[name] for name in self._names])[0]
        except (KeyError, ValueError, ArithmeticError, TypeError) as error:
            raise EncodeError(f"the row's checksum cannot be computed: {error!s:.120}") from error

    def fault(self, row: Row, extension: Mapping[str, object]) -> str | None:
        """Why the row is not what its checksum says; None where it is, or has none.

        Deterministic in the row alone, and the same text as the Spark path's.
        """
        if extension.get(CORRUPTED) is True:
            return CORRUPTED_REASON
        said = extension.get(CHECKSUM, "")
        if said in NO_CHECKSUM:
            return None
        return checksum_reason(str(said), self._readers, [row[name] for name in self._names])


def checksum_fault(event: ChangeEvent, *, time_zone: str = "UTC") -> str | None:
    """Why a decoded flat-avro event is not what its checksum says; None where it is, or has none.

    ``time_zone`` is the changefeed's: TIMESTAMP texts carry none.
    """
    row = event.after if event.after is not None else event.before
    if row is None or event.schema is None or not event.extension or CHECKSUM not in event.extension:
        return None
    return RowSums(event.schema.columns, time_zone).fault(row, event.extension)
