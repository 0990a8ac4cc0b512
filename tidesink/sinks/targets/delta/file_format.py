"""Delta's formats for file statistics, deletion vectors and partition values, for the tasks that write files.

One deletion vector file contains the vectors of many data files.
"""

from __future__ import annotations

import base64
import json
import random
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final
from urllib.parse import unquote
from uuid import UUID, uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.errors import TargetError
from tidesink.sinks.targets.lake.files import (
    DataFile,
    FileRefusedError,
    MarkedRows,
    WrittenFile,
)
from tidesink.sinks.targets.lake.rows import FileColumn, Partition, Places, folder_of, grouped, iso_text
from tidesink.sinks.targets.lake.storage import LOCAL, Storage
from tidesink.sinks.targets.lake.vectors import FRAME_BYTES, array_positions, framed_vector, read_vector

# Length of a text's prefix in Delta's statistics, and the greatest length of an upper bound, in UTF-16 units.
_PREFIX: Final = 32
_LIMIT: Final = 2 * _PREFIX
_LAST_ASCII: Final = "\x7f"
_LAST: Final = "\U0010ffff"
# Hive's folder name for NULL. Spark and Delta also read a partition value with this text as NULL.
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
# Characters that Spark escapes in folder names.
_ESCAPED: Final = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")


@dataclass(frozen=True)
class Statistics:
    """Computes the statistics of a data file, as JSON for Delta's log.

    ``columns``: physical names of the columns with statistics. Nested columns (``SEQUENCE_COLUMN``) are
        skipped, because no reader filters by them.
    """

    columns: frozenset[str]

    def __call__(self, rows: pa.Table) -> str:
        """Return the statistics of a file with these rows as JSON."""
        plain = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
        names = [name for name in plain if name in self.columns]
        ranges = {name: _range(rows[name]) for name in names}
        parts = [f'"numRecords":{rows.num_rows}']
        for index, side in enumerate(("minValues", "maxValues")):
            bounds = [
                f"{json.dumps(name)}:{limits[index]}" for name, limits in ranges.items() if limits[index]
            ]
            parts.append(f'"{side}":{{{",".join(bounds)}}}')
        nulls = json.dumps({name: rows[name].null_count for name in names}, separators=(",", ":"))
        return f'{{{",".join(parts)},"nullCount":{nulls},"tightBounds":true}}'


def _range(values: pa.ChunkedArray) -> tuple[str | None, str | None]:
    """Return a column's least and greatest value as JSON texts; None in place of a value that Delta's
    statistics do not record.
    """
    kind = values.type
    if pa.types.is_boolean(kind) or pa.types.is_binary(kind) or values.null_count == len(values):
        return None, None
    if pa.types.is_floating(kind):
        return _float_range(values)
    limits = pc.min_max(values)
    least, greatest = limits["min"], limits["max"]
    if pa.types.is_string(kind):
        high = _upper_bound(greatest.as_py())
        return json.dumps(_prefix(least.as_py())), None if high is None else json.dumps(high)
    return _words(least), _words(greatest)


def _words(value: pa.Scalar) -> str | None:
    if pa.types.is_integer(value.type):
        return str(value.as_py())
    if pa.types.is_decimal(value.type):
        return f"{value.as_py():f}"
    try:
        return _instant(value) if pa.types.is_timestamp(value.type) else f'"{value.as_py()}"'
    except (OverflowError, ValueError):  # a year outside the range of Python's dates
        return None


def _instant(value: pa.Scalar) -> str:
    """Format a timestamp for statistics. Digits after the milliseconds are cut off.

    Readers expect the greatest value to be cut off in the same way.
    """
    moment = value.cast(pa.timestamp("us")).as_py()
    text = moment.isoformat(timespec="milliseconds")
    return f'"{text}Z"' if value.type.tz else f'"{text}"'


def _float_range(values: pa.ChunkedArray) -> tuple[str, str]:
    """Return the least and the greatest of the floats as JSON texts, in Spark's order, in which NaN is the
    greatest.

    A least value of zero becomes -0.0 and a greatest value of zero becomes 0.0, because readers differ in
    whether -0.0 equals 0.0.
    """
    numbers = values.drop_null().to_numpy()
    real = numbers[~np.isnan(numbers)]
    if not len(real):
        return '"NaN"', '"NaN"'
    least, greatest = real.min() or np.float64(-0.0), real.max() or np.float64(0.0)
    return _number(least), '"NaN"' if len(real) < len(numbers) else _number(greatest)


def _number(value: np.floating[Any]) -> str:
    if np.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    return str(value)


def _prefix(text: str) -> str:
    """Return the first 32 UTF-16 units of a text, as a lower bound for statistics; 33 units if a surrogate
    pair would be split.
    """
    units = 0
    for position, character in enumerate(text):
        if units >= _PREFIX:
            return text[:position]
        units += 2 if ord(character) > 0xFFFF else 1
    return text


def _upper_bound(text: str) -> str | None:
    """Return a short text that is not less than ``text``, as an upper bound for statistics.

    Returns None if every such text is longer than 64 UTF-16 units, which Delta does not allow.
    """
    head = _prefix(text)
    while len(head.encode("utf-16-le")) // 2 <= _LIMIT:
        if head == text:
            return text
        following = text[len(head)]
        if following != _LAST:
            return head + (_LAST_ASCII if following < _LAST_ASCII else _LAST)
        head += following
    return None


@dataclass(frozen=True)
class Vectors:
    """Reads and writes Delta's deletion vectors, which mark rows of data files as deleted
    (``lake.files.Marks``).

    An entry of ``DataFile.deletes`` is a vector's descriptor as JSON.

    ``root``: the table's folder.
    """

    root: str
    storage: Storage = LOCAL

    def column_name(self, column: FileColumn, schema: pa.Schema) -> str | None:
        """Return a column's physical name in a data file with this schema; None if the file lacks the
        column.
        """
        return column.name if column.name in schema.names else None

    def deleted(self, files: Sequence[DataFile], starts: Places) -> Places:
        """Return the row numbers of the rows in ``files`` that are already deleted.

        The rows of all files are numbered consecutively, as in ``MarkedRows``.

        ``starts``: number of each file's first row.
        """
        hidden = self.storage.each(self._positions, files)
        return np.concatenate(
            [np.empty(0, np.int64), *(start + rows for start, rows in zip(starts, hidden, strict=False))]
        )

    def partition_value(self, column: FileColumn, file: DataFile) -> pa.Scalar | None:
        """Return a file's value of a partition column, which Delta stores in the log; None if ``column`` is
        not a partition column.

        Raises:
            FileRefusedError: the log's value is a timestamp without a time zone but the column has one, or
                the reverse.
        """
        values = json.loads(file.partition.values or "{}")
        if column.name not in values:
            return None
        value = partition_value(values[column.name], column.type)
        if value is None:
            raise FileRefusedError(
                f"the partition value of the file {file.path} is a timestamp without a time zone",
                url=file.path,
            )
        return value

    def write(self, marked: Sequence[MarkedRows], part: str) -> Iterator[WrittenFile]:  # noqa: ARG002  (other formats name files so)
        """Write one file with a new deletion vector for each changed data file, and yield its
        ``WrittenFile``.

        A new vector also contains the rows of its data file that were already deleted.
        """
        number, whole, vectors, rows = uuid4(), bytearray(b"\x01"), [], 0
        files = [pair for some in marked for pair in some.by_file()]
        before = self.storage.each(self._positions, [file for file, _ in files])
        for (file, new), hidden in zip(files, before, strict=True):
            positions = np.union1d(hidden, new)
            data, location = framed_vector(positions), {"file": file.path, "offset": len(whole)}
            vectors.append({**location, "size": len(data) - FRAME_BYTES, "rows": len(positions)})
            whole += data
            rows += len(new)
        path = f"{self.root}/deletion_vector_{number}.bin"
        with self.storage.writing(path) as out:
            out.write(bytes(whole))
        details = json.dumps({"uuid": str(number), "vectors": vectors})
        yield WrittenFile(path, len(whole), rows, details=details)

    def _positions(self, file: DataFile) -> Places:
        positions = [
            vector_positions(self.root, json.loads(vector), of=file.path, storage=self.storage)
            for vector in file.deletes
        ]
        return np.concatenate([np.empty(0, np.int64), *positions])


def vector_path(root: str, vector: dict[str, Any]) -> str | None:
    """Return the path of the file that contains a deletion vector; None if Delta's log itself contains the
    vector.

    ``root``: the table's folder.
    ``vector``: the vector's descriptor from the log.
    """
    stored = str(vector["pathOrInlineDv"])
    if vector["storageType"] == "i":
        return None
    if vector["storageType"] == "p":
        return unquote(stored)  # Delta writes absolute paths as URIs (``DeletionVectorDescriptor``)
    prefix, number = stored[:-20], UUID(bytes=_z85(stored[-20:]))
    return "/".join(filter(None, (root, prefix, f"deletion_vector_{number}.bin")))


def vector_positions(
    root: str,
    vector: dict[str, Any],
    *,
    of: str,
    storage: Storage = LOCAL,
) -> Places:
    """Return the positions of the rows that a deletion vector deletes, in ascending order.

    ``root``: the table's folder.
    ``vector``: the vector's descriptor from the log.
    ``of``: path of the data file, for error messages.

    Raises:
        FileRefusedError: the vector's length, checksum or number of rows differs from its descriptor, or its
            layout is unknown.
    """
    path = vector_path(root, vector)
    if path is None:
        data = _z85(vector["pathOrInlineDv"])[: vector["sizeInBytes"]]
    else:
        size = int(vector["sizeInBytes"]) + FRAME_BYTES
        data = read_vector(storage, path, vector.get("offset") or 0, size, of=of)
    return array_positions(data, vector["cardinality"], of=of)


# Z85 and Python's Base85 encode the same digits with different characters.
_Z85: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_DIGITS: Final = str.maketrans(_Z85, _B85)


def _z85(text: str) -> bytes:
    return base64.b85decode(text.translate(_DIGITS))


# Partition values, as spelled in the log and in folder names.


@dataclass(frozen=True)
class SplitByColumns:
    """Splits rows by the values of the table's partition columns, and drops these columns (a
    ``lake.rows.Split``).

    ``named``: True if folder names contain the partition values (``column=value``, as in Hive). False if they
        are short random names, as in tables with column mapping.
    """

    columns: tuple[FileColumn, ...]
    named: bool

    def __call__(self, rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
        """Yield each partition that some of the rows belong to, and its rows.

        Raises:
            TargetError: a partition column has a text that Delta would read back as NULL.
        """
        names = [column.name for column in self.columns]
        for first, part in grouped(rows.drop_columns(names), [rows[name] for name in names]):
            values = {name: partition_text(rows[name][first]) for name in names}
            for column in self.columns:
                check_text(values[column.name], column.source)
            yield Partition(self._folder(values), json.dumps(values)), part

    def _folder(self, values: dict[str, str | None]) -> str:
        if not self.named:
            return "".join(random.choices(string.ascii_letters + string.digits, k=2))  # noqa: S311  (a place, no secret)
        texts = ((name, NULL_FOLDER if text is None else text) for name, text in values.items())
        return folder_of(f"{escaped(name)}={escaped(text)}" for name, text in texts)


def check_text(text: str | None, column: str, *, table: str | None = None) -> None:
    """Check that Delta does not read the text of a partition column back as NULL.

    Raises:
        TargetError: the text is empty, or is Hive's name for NULL (``NULL_FOLDER``). The error names the
            column.
    """
    if text in ("", NULL_FOLDER):
        raise TargetError(
            f"A row has {f'the text {text}' if text else 'an empty text'} in the partition column {column}. "
            "Delta would read it back as NULL, so nothing was committed. Partition the table by another "
            "column.",
            table=table,
            column=column,
        )


def escaped(text: str) -> str:
    """Escape a partition value for the name of its folder, as Spark does."""
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def partition_text(value: pa.Scalar) -> str | None:
    """Format a partition value for Delta's log; None for NULL."""
    kind = value.type
    if not value.is_valid:
        return None
    if pa.types.is_decimal(kind):
        return f"{value.as_py():f}"
    if pa.types.is_boolean(kind):
        return str(value.as_py()).lower()
    if pa.types.is_date(kind):
        return iso_text(value)
    if pa.types.is_timestamp(kind):
        text = iso_text(value)
        return f"{text}Z" if kind.tz else text.replace("T", " ").rstrip("0").removesuffix(".")
    return str(value.as_py())


def partition_value(text: str | None, kind: pa.DataType) -> pa.Scalar | None:
    """Parse a partition value from Delta's log.

    Returns None for a timestamp without a time zone if the type has one, and the reverse.
    """
    if not text:
        return pa.scalar(None, kind)
    if pa.types.is_date(kind):
        days = np.datetime64(text, "D").astype(np.int64)
        return pa.scalar(int(days), pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind):
        if bool(kind.tz) != text.endswith("Z"):
            return None
        micros = np.datetime64(text.removesuffix("Z"), "us").astype(np.int64)
        return pa.scalar(int(micros), pa.int64()).cast(kind)
    if pa.types.is_boolean(kind):
        return pa.scalar(text.lower() == "true", kind)
    if pa.types.is_decimal(kind):
        return pa.scalar(Decimal(text), kind)
    return pa.scalar(int(text) if pa.types.is_integer(kind) else text, kind)
