"""Arrow batches as CSV lines, whole columns at a time.

NULL is the bare word ``NULL``; a text is always in quotes, quotes in it doubled, so that no text is NULL,
an empty one neither. Postgres (``COPY … NULL 'NULL'``) and MySQL (``LOAD DATA … ESCAPED BY ''``) read the
same lines. Nothing else is escaped: line ends and delimiters stand inside the quotes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

# How a column is written: in quotes, as its number or hex digits, or as the time of its microseconds.
Kind = Literal["text", "plain", "micros"]
NULL: Final = "NULL"


class CsvLines:
    """The lines of one task; each begins with the task's attempt. ``rows`` counts those written.

    ``nul_column`` is the position of a text column with a U+0000 in it, where ``nul_refused`` and one was
    met: no more is written then.
    """

    def __init__(self, attempt: int, kinds: tuple[Kind, ...], *, nul_refused: bool) -> None:
        self.rows = 0
        self.nul_column: int | None = None
        self._attempt = attempt
        self._kinds = kinds
        self._nul_refused = nul_refused

    def chunks(self, batches: Iterable[Any]) -> Iterator[memoryview]:
        """The lines of record batches, whose columns are those of ``kinds``."""
        for batch in batches:
            if batch.num_rows == 0 or self.nul_column is not None:
                continue  # the rest is read all the same: Spark waits for its batches to be taken
            columns = [batch.column(at) for at in range(batch.num_columns)]
            if self._nul_refused:
                self.nul_column = self._first_nul(columns)
                if self.nul_column is not None:
                    continue
            self.rows += batch.num_rows
            yield _lines(f"\n{self._attempt}", columns, self._kinds, first=self.rows == batch.num_rows)
        if self.rows:
            yield memoryview(b"\n")

    def _first_nul(self, columns: list[Any]) -> int | None:
        import pyarrow.compute as pc

        for at, (column, kind) in enumerate(zip(columns, self._kinds, strict=True)):
            if kind == "text" and pc.any(pc.match_substring(column, "\0")).as_py():
                return at
        return None


def _lines(attempt: str, columns: list[Any], kinds: tuple[Kind, ...], *, first: bool) -> memoryview:
    """Lines that begin with their line end; the first line of all begins without."""
    import pyarrow as pa
    import pyarrow.compute as pc

    large = pa.large_string()
    words = [_words(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    joined = pc.binary_join_element_wise(
        pa.scalar(attempt, large),
        *words,
        pa.scalar(",", large),
        null_handling="replace",
        null_replacement=NULL,
    )
    _, offsets, data = joined.buffers()
    ends = memoryview(offsets).cast("q")
    text = memoryview(data)[ends[joined.offset] : ends[joined.offset + len(joined)]]
    return text[1:] if first else text


def _words(column: Any, kind: Kind) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    large = pa.large_string()
    if kind == "micros":
        column = column.cast(pa.timestamp("us"))
    if pa.types.is_float32(column.type):
        column = column.cast(pa.float64())  # the shortest digits of the greatest float are beyond its range
    if kind != "text":
        return column.cast(pa.string()).cast(large)
    escaped = pc.replace_substring(column.cast(large), pattern='"', replacement='""')
    empty, quote = pa.scalar("", large), pa.scalar('"', large)
    return pc.binary_join_element_wise(empty, escaped, empty, quote)
