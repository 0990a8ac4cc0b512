"""Reads and writes Iceberg's marks of deleted rows (position delete files and deletion vectors) in Spark
tasks.

A table of format 2 has position delete files. A table of format 3 has deletion vectors in Puffin files, at
most one for each data file. If it was upgraded from format 2, it may also still have position delete files.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidesink.sinks.targets.lake.files import DataFile, FileRefusedError, MarkedRows, NewFiles, WrittenFile
from tidesink.sinks.targets.lake.rows import FIELD_ID, FileColumn, Partition, Places, codes
from tidesink.sinks.targets.lake.storage import Storage
from tidesink.sinks.targets.lake.vectors import array_positions, framed_vector, read_vector

# The columns of a position delete file, with the field ids that Iceberg reserves for them.
POSITIONS: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: b"2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: b"2147483545"}),
    ]
)
_PUFFIN: Final = b"PFA1"
# Entry of a deletion vector in a Puffin file's footer. -1 stands for the snapshot that adds the file.
_BLOB: Final = {
    "type": "deletion-vector-v1",
    "fields": [2_147_483_645],
    "snapshot-id": -1,
    "sequence-number": -1,
}


class Vector(NamedTuple):
    """A deletion vector in a Puffin file. ``DataFile.deletes`` contains it as JSON.

    ``offset``, ``size``: its place in the Puffin file, in bytes.
    ``rows``: number of rows that it deletes.
    """

    path: str
    offset: int
    size: int
    rows: int


@dataclass(frozen=True)
class PositionFiles:
    """Reads and writes position delete files, which mark rows as deleted in format 2 (``lake.files.Marks``).

    Columns of data files are found by their field ids.

    ``files``: location and settings of new position delete files.
    ``partitioned``: the partition fields with the transform ``identity``, as pairs of a partition spec's id
        and a column's field id. A data file that another program imported may lack such a column.
    """

    files: NewFiles
    partitioned: frozenset[tuple[int, int]] = frozenset()

    @property
    def storage(self) -> Storage:
        """The storage with which the table's files are opened."""
        return self.files.storage

    def column_name(self, column: FileColumn, schema: pa.Schema) -> str | None:
        """Return the name that a column has in a file with this schema, found by its field id; None if the
        file lacks the column.
        """
        number = str(column.field_id).encode()
        return next((f.name for f in schema if (f.metadata or {}).get(FIELD_ID) == number), None)

    def deleted(self, files: Sequence[DataFile], starts: Places) -> Places:
        """Return the row numbers of the rows in ``files`` that are already deleted.

        The rows of all files are numbered consecutively, as in ``MarkedRows``. A position delete file only
        counts for a data file that lists it in ``deletes``, even if it also contains paths of other data
        files.

        ``starts``: number of each file's first row.
        """
        pairs = zip(starts, files, strict=False)
        each = [(start, file, delete) for start, file in pairs for delete in file.deletes]
        vectors = [entry for entry in each if _is_vector(entry[2])]
        paths = dict.fromkeys(text for _, _, text in each if not _is_vector(text))
        numbers = self.storage.each(partial(self._deleted_by, files, starts), [*paths])
        numbers += self.storage.each(self._hidden, vectors)
        return np.concatenate([np.empty(0, np.int64), *numbers])

    def _deleted_by(self, files: Sequence[DataFile], starts: Places, deletes: str) -> Places:
        """Return the row numbers (as in ``deleted``) of the rows that one position delete file deletes.

        ``deletes``: path of the position delete file.
        """
        paths = pa.array(
            [data_file.path if deletes in data_file.deletes else None for data_file in files], pa.string()
        )
        numbers = [np.empty(0, np.int64)]
        with (
            self.storage.reading(deletes) as source,
            pq.ParquetFile(source, pre_buffer=True, read_dictionary=["file_path"]) as parquet,
        ):
            for chunk in parquet.read(columns=["file_path", "pos"]).to_batches():
                names = chunk.column("file_path")
                file = codes(pa.chunked_array([names.dictionary]), paths)[names.indices.to_numpy()]
                rows = starts[file] + chunk.column("pos").to_numpy()
                numbers.append(rows[file >= 0])
        return np.concatenate(numbers)

    def _hidden(self, place: tuple[int, DataFile, str]) -> Places:
        """Return the row numbers (as in ``deleted``) of the rows that one data file's deletion vector
        deletes.

        ``place``: number of the data file's first row, the data file, and the deletion vector as JSON.
        """
        start, file, text = place
        vector = Vector(*json.loads(text))
        data = read_vector(self.storage, vector.path, vector.offset, vector.size, of=file.path)
        return start + array_positions(data, vector.rows, of=file.path)

    def partition_value(self, column: FileColumn, file: DataFile) -> pa.Scalar | None:
        """Return None, which stands for NULL: a column that a data file lacks was added to the table later.

        Raises:
            FileRefusedError: the column has a partition field with the transform ``identity``, so the file
                may have been imported without the column, although its value is not NULL.
        """
        spec = json.loads(file.partition.values or "[0]")[0]
        if (spec, column.field_id) in self.partitioned and not column.key:
            raise FileRefusedError(f"the file {file.path} has no column {column.source}", url=file.path)
        return None

    def write(self, marked: Sequence[MarkedRows], part: str) -> Iterator[WrittenFile]:
        """Write one position delete file for each partition, and yield its ``WrittenFile``.

        The positions are sorted by data file and position.
        """
        positions = dict[Partition, list[pa.Table]]()
        for file, row_numbers in (pair for some in marked for pair in some.by_file()):
            table = pa.table(
                [pa.array([file.path] * len(row_numbers)), pa.array(row_numbers)], schema=POSITIONS
            )
            positions.setdefault(file.partition, []).append(table)
        for number, (partition, tables) in enumerate(positions.items()):
            yield self.files.write(pa.concat_tables(tables), f"{part}-{number}", partition)


@dataclass(frozen=True)
class VectorFiles(PositionFiles):
    """Reads and writes deletion vectors, which mark rows as deleted in format 3 (``lake.files.Marks``).

    Position delete files from before an upgrade to format 3 are still read.
    """

    def write(self, marked: Sequence[MarkedRows], part: str) -> Iterator[WrittenFile]:
        """Write a Puffin file with a new deletion vector for each changed data file, and yield its
        ``WrittenFile``.

        A new vector also contains the rows of its data file that were already deleted. The ``details`` of the
        ``WrittenFile`` list for each vector the data file, the vector's place in the Puffin file, its number
        of rows, and how many of these rows are newly deleted.
        """
        whole, blobs, vectors = bytearray(_PUFFIN), list[dict[str, Any]](), list[dict[str, Any]]()
        for some in marked:
            new = {file: len(positions) for file, positions in some.by_file()}
            for file, positions in self._with_hidden(some, new).by_file():
                data, offset, rows = framed_vector(positions), len(whole), len(positions)
                extent = {"offset": offset, "length": len(data)}
                properties = {"referenced-data-file": file.path, "cardinality": str(rows)}
                blobs.append({**_BLOB, **extent, "properties": properties})
                vectors.append({"file": file.path, **extent, "rows": rows, "new": new[file]})
                whole += data
        footer = json.dumps({"blobs": blobs, "properties": {"created-by": "tidesink"}}).encode()
        whole += _PUFFIN + footer + struct.pack("<ii", len(footer), 0) + _PUFFIN
        path = f"{self.files.path(part).removesuffix('.parquet')}.puffin"
        with self.storage.writing(path) as out:
            out.write(bytes(whole))
        count = sum(vector["new"] for vector in vectors)
        yield WrittenFile(path, len(whole), count, details=json.dumps(vectors))

    def _with_hidden(self, marked: MarkedRows, touched: Collection[DataFile]) -> MarkedRows:
        """Return the rows to mark, together with the already deleted rows of the files ``touched``."""
        numbers = [number for number, file in enumerate(marked.files) if file in touched]
        hidden = self.deleted([marked.files[number] for number in numbers], marked.starts[numbers])
        return marked._replace(rows=np.union1d(marked.rows, hidden))


def _is_vector(deletes: str) -> bool:
    """Return True if an entry of ``deletes`` is a deletion vector (JSON), False if it is a file's path."""
    return deletes.startswith("[")
