"""How a batch's rows are split among a lake table's partitions: each new file is of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.sinks.targets.lake.tables import LONGEST_FOLDER

# A task that would write more files of a batch at once leaves it to Spark.
MOST_PARTITIONS: Final = 1_000


class Partition(NamedTuple):
    """A partition: the folder of its files, and its values as the format's commit takes them."""

    folder: str = ""
    values: str = ""


# Splits rows into those of each partition, without the columns that files leave out.
Split = Callable[[pa.Table], Iterator[tuple[Partition, pa.Table]]]


class TooManyPartitionsError(ValueError):
    """Rows are of more than ``MOST_PARTITIONS`` partitions."""


def unpartitioned(rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
    """The ``Split`` of a table without partitions."""
    yield Partition(), rows


def grouped(rows: pa.Table, by: Sequence[pa.ChunkedArray]) -> Iterator[tuple[int, pa.Table]]:
    """Rows that are equal in all of ``by`` (NULL is a value), with the number of the first; in their order.

    Raises:
        TooManyPartitionsError: before the first.
    """
    codes = np.zeros(rows.num_rows, np.int64)
    for values in by:
        encoded = pc.dictionary_encode(pa.chunked_array(values).combine_chunks(), null_encoding="encode")
        both = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
        codes = np.unique(both, return_inverse=True)[1]
    _, firsts, counts = np.unique(codes, return_index=True, return_counts=True)
    if len(firsts) > MOST_PARTITIONS:
        raise TooManyPartitionsError
    if len(firsts) > 1:
        rows = rows.take(np.argsort(codes, kind="stable"))
    start = 0
    for first, count in zip(firsts, counts, strict=True):
        yield int(first), rows.slice(start, count)
        start += count


def folder_of(names: Iterable[str]) -> str:
    """A path of folders; names are cut where file systems take no longer ones. No reader looks at them."""
    return "/".join(name.encode()[:LONGEST_FOLDER].decode(errors="ignore") for name in names)


def iso_text(value: pa.Scalar) -> str:
    """A date, or a timestamp in microseconds, as ISO 8601 has it: of any year, with all six digits."""
    is_date = pa.types.is_date(value.type)
    number = value.cast(pa.int32() if is_date else pa.int64()).as_py()
    text = str(np.datetime64(number, "D" if is_date else "us"))
    sign, digits = ("-", text[1:]) if text[0] == "-" else ("", text)
    year, _, rest = digits.partition("-")
    return f"{sign or '+' * (len(year) > 4)}{year:0>4}-{rest}"
