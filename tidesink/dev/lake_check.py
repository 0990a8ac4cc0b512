"""Compares the Delta tables that a worker wrote with their expected rows.

Every column of every row is compared by the column's type: in a decimal column 1.50 equals 1.5, a TIMESTAMP
is an instant, and a FLOAT is a 32-bit number.

The check is independent of the worker: it reads the tables with pyarrow, needs no Java, and imports nothing
from ``tidesink.sinks``. Source of the format: the Delta transaction log protocol (actions, checkpoints,
column mapping by name, deletion vectors as 64-bit Roaring bitmap arrays in the portable layout). V2
checkpoints are not supported.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.parquet as pq

from tidesink.dev.shop import ExpectedTable
from tidesink.typemap.values import DECIMAL_CONTEXT

_SHOWN = 3


@dataclass(frozen=True)
class TableCheck:
    """Result of comparing a table: numbers of compared rows and columns, and the first differences."""

    table: str
    rows: int
    columns: int
    differences: tuple[str, ...]

    @property
    def right(self) -> bool:
        """True if all values of the table are as expected."""
        return not self.differences


def check_table(
    path: Path, expected: ExpectedTable, *, time_zone: str = "UTC", zero_date: str = "null"
) -> TableCheck:
    """Compares the Delta table at ``path`` with its expected rows.

    ``time_zone``: time zone of the expected TIMESTAMP values. ``zero_date``: the table's policy for invalid
    dates, which determines their expected values.
    """
    try:
        lake = open_lake_table(path)
    except FileNotFoundError:
        missing = () if not expected.rows else (f"there is no Delta table at {path.name}",)
        return TableCheck(str(expected.table), 0, len(expected.columns), missing)
    names = list(expected.columns)
    absent = tuple(f"column {name} is missing" for name in names if name not in lake.columns)
    if absent:
        return TableCheck(str(expected.table), 0, len(names), absent)
    actual = lake.read().select(names).to_pydict()
    readers = [_reader(lake.columns[name], ZoneInfo(time_zone), zero_date) for name in names]
    wanted = [tuple(read(text) for read, text in zip(readers, row, strict=True)) for row in expected.rows]
    lake_rows = list(zip(*(actual[name] for name in names), strict=True))
    key = [names.index(name) for name in expected.key] or list(range(len(names)))
    differences = _differences(wanted, [_plain(row) for row in lake_rows], key, names)
    return TableCheck(str(expected.table), len(lake_rows), len(names), tuple(differences))


def _plain(row: tuple[object, ...]) -> tuple[object, ...]:
    return tuple(
        value if not isinstance(value, datetime) or value.tzinfo is None else _utc(value) for value in row
    )


def _utc(value: datetime) -> datetime:
    return value.astimezone(timezone.utc).replace(tzinfo=None)


def _differences(
    wanted: list[tuple[object, ...]],
    lake_rows: list[tuple[object, ...]],
    key: Sequence[int],
    names: list[str],
) -> list[str]:
    by_key = {tuple(row[i] for i in key): row for row in lake_rows}
    messages = []
    if len(by_key) != len(lake_rows):
        messages.append(f"{len(lake_rows) - len(by_key)} rows appear more than once")
    for row in wanted:
        identity = tuple(row[i] for i in key)
        other = by_key.pop(identity, None)
        if other is None:
            messages.append(f"row {identity} is missing")
        elif other != row:
            unequal = [n for n, a, b in zip(names, row, other, strict=True) if a != b]
            column = names.index(unequal[0])
            messages.append(
                f"row {identity} column {unequal[0]}: {other[column]!r}, expected {row[column]!r}"
            )
    messages.extend(f"row {identity} is unexpected" for identity in by_key)
    return messages[:_SHOWN] + ([f"and {len(messages) - _SHOWN} more"] if len(messages) > _SHOWN else [])


def _reader(delta_type: str, zone: ZoneInfo, zero_date: str) -> Callable[[str | None], object]:
    read = _reader_of_type(delta_type, zone)
    nulls_zero_dates = delta_type in ("date", "timestamp", "timestamp_ntz") and zero_date == "null"

    def value(text: str | None) -> object:
        if text is None or (nulls_zero_dates and not _in_calendar(text)):
            return None
        return read(text)

    return value


def _reader_of_type(delta_type: str, zone: ZoneInfo) -> Callable[[str], object]:
    if delta_type.startswith("decimal"):
        unit = Decimal(1).scaleb(-int(delta_type.rstrip(")").rpartition(",")[2]))
        return lambda text: Decimal(text).quantize(unit, context=DECIMAL_CONTEXT)
    if delta_type == "timestamp":
        return lambda text: _instant(text, zone)
    return _READERS[delta_type]


def _in_calendar(text: str) -> bool:
    try:
        date.fromisoformat(text[:10])
    except ValueError:
        return False
    return True


def _instant(text: str, zone: ZoneInfo) -> datetime:
    return _utc(_datetime(text).replace(tzinfo=zone))


def _datetime(text: str) -> datetime:
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole).replace(microsecond=int(fraction.ljust(6, "0") or 0))


def _float32(text: str) -> float:
    return float(struct.unpack("<f", struct.pack("<f", float(text)))[0])


_READERS: dict[str, Callable[[str], object]] = {
    "integer": int,
    "long": int,
    "short": int,
    "byte": int,
    "float": _float32,
    "double": float,
    "string": str,
    "binary": bytes.fromhex,
    "date": date.fromisoformat,
    "timestamp_ntz": _datetime,
}


_ROARING_ARRAY_MAGIC = 1_681_511_377
_COOKIE_WITHOUT_RUNS = 12_346
_COOKIE_WITH_RUNS = 12_347
_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.\d{10})?\.parquet")
# Delta's Z85 uses another alphabet than base64.b85, but the same digits.
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85_TO_B85 = str.maketrans(_Z85, _B85)


@dataclass
class LakeTable:
    """One version of a Delta table: its column types, as named by Delta, and its data files."""

    path: Path
    version: int = -1
    columns: dict[str, str] = field(default_factory=dict)
    physical_names: dict[str, str] = field(default_factory=dict)
    files: dict[tuple[str, str | None], dict[str, Any]] = field(default_factory=dict)

    def read(self) -> pa.Table:
        """Returns all rows that are not deleted, with the columns' logical names."""
        parts = [self._file(add) for add in self.files.values()]
        if not parts:
            return pa.table({name: pa.array([]) for name in self.columns})
        return pa.concat_tables(parts, promote_options="permissive")

    def _file(self, add: dict[str, Any]) -> pa.Table:
        table = pq.read_table(
            self.path / unquote(add["path"]), coerce_int96_timestamp_unit="us", partitioning=None
        )
        # The log has the value of a partition column for the whole file, as text. A column that was added
        # after the file was written is neither in the log nor in the file, and is NULL.
        partition = dict(add.get("partitionValues") or {})
        columns = {
            name: table[physical]
            if physical in table.column_names
            else pa.array([partition.get(physical)] * table.num_rows, pa.string())
            if physical in partition
            else pa.nulls(table.num_rows)
            for name, physical in self.physical_names.items()
        }
        logical = pa.table(columns)
        deleted = deleted_rows(self.path, add.get("deletionVector"))
        if not deleted:
            return logical
        return logical.filter(pa.array([row not in deleted for row in range(logical.num_rows)]))


def open_lake_table(path: Path, version: int | None = None) -> LakeTable:
    """Opens a version of the Delta table at ``path``. ``version``: its number, or None for the newest.

    Raises:
        FileNotFoundError: There is no Delta log at ``path``.
    """
    log = path / "_delta_log"
    names = sorted(entry.name for entry in log.iterdir())
    table = LakeTable(path)
    matches = ((name, _COMMIT.fullmatch(name) or _CHECKPOINT.fullmatch(name)) for name in names)
    numbers = {name: int(match.group(1)) for name, match in matches if match}
    names = [name for name, number in numbers.items() if version is None or number <= version]
    checkpoints = [checkpoint for name in names if (checkpoint := _CHECKPOINT.fullmatch(name))]
    if checkpoints:
        table.version = max(int(checkpoint.group(1)) for checkpoint in checkpoints)
        for checkpoint in checkpoints:
            if int(checkpoint.group(1)) == table.version:
                _replay(table, _checkpoint_actions(log / checkpoint.group(0)))
    for name in names:
        commit = _COMMIT.fullmatch(name)
        if commit and int(commit.group(1)) > table.version:
            _replay(table, _commit_actions(log / name))
            table.version = int(commit.group(1))
    return table


def _checkpoint_actions(path: Path) -> Iterator[dict[str, Any]]:
    columns = [name for name in ("metaData", "add") if name in pq.read_schema(path).names]
    yield from pq.read_table(path, columns=columns).to_pylist()


def _commit_actions(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        yield from (json.loads(line) for line in lines if line.strip())


def _replay(table: LakeTable, actions: Iterator[dict[str, Any]]) -> None:
    added: dict[tuple[str, str | None], dict[str, Any]] = {}
    for action in actions:
        if action.get("metaData"):
            _take_schema(table, json.loads(action["metaData"]["schemaString"]))
        if action.get("add"):
            added[_file_key(action["add"])] = action["add"]
        if action.get("remove"):
            table.files.pop(_file_key(action["remove"]), None)
    # The order of the removes and adds in a commit has no meaning.
    table.files.update(added)


def _file_key(action: dict[str, Any]) -> tuple[str, str | None]:
    vector = action.get("deletionVector")
    return action["path"], None if not vector else f"{vector['pathOrInlineDv']}@{vector.get('offset')}"


def _take_schema(table: LakeTable, schema: dict[str, Any]) -> None:
    table.columns = {column["name"]: json.dumps(column["type"]).strip('"') for column in schema["fields"]}
    table.physical_names = {
        column["name"]: column.get("metadata", {}).get("delta.columnMapping.physicalName", column["name"])
        for column in schema["fields"]
    }


def deleted_rows(table: Path, vector: dict[str, Any] | None) -> set[int]:
    """Returns the numbers of the rows in a data file that its deletion vector marks as deleted."""
    if not vector:
        return set()
    stored = vector["pathOrInlineDv"]
    if vector["storageType"] == "i":
        return set(_roaring_array(_z85(stored)[: vector["sizeInBytes"]]))
    path = Path(stored) if vector["storageType"] == "p" else table / _vector_file(stored)
    with path.open("rb") as file:
        file.seek(vector["offset"])
        (size,) = struct.unpack(">i", file.read(4))
        return set(_roaring_array(file.read(size)))


def _z85(text: str) -> bytes:
    return base64.b85decode(text.translate(_Z85_TO_B85))


def _vector_file(stored: str) -> str:
    prefix, encoded = stored[:-20], stored[-20:]
    uuid = _z85(encoded).hex()
    name = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"


def _roaring_array(data: bytes) -> Iterator[int]:
    magic, bitmaps = struct.unpack_from("<iq", data)
    if magic != _ROARING_ARRAY_MAGIC:
        raise ValueError(
            f"The deletion vector is not a portable Roaring bitmap array: it begins with {magic}."
        )
    position = 12
    for _ in range(bitmaps):
        (high,) = struct.unpack_from("<i", data, position)
        lows, position = _roaring32(data, position + 4)
        yield from (high << 32 | low for low in lows)


def _roaring32(data: bytes, start: int) -> tuple[list[int], int]:
    (cookie,) = struct.unpack_from("<I", data, start)
    with_runs = cookie & 0xFFFF == _COOKIE_WITH_RUNS
    if with_runs:
        count, position = (cookie >> 16) + 1, start + 4
        runs, position = data[position : position + (count + 7) // 8], position + (count + 7) // 8
    elif cookie == _COOKIE_WITHOUT_RUNS:
        (count,) = struct.unpack_from("<I", data, start + 4)
        runs, position = bytes((count + 7) // 8), start + 8
    else:
        raise ValueError(f"A Roaring bitmap of the deletion vector begins with an unknown cookie: {cookie}.")
    headers = [struct.unpack_from("<HH", data, position + 4 * i) for i in range(count)]
    position += 4 * count
    if not with_runs or count >= 4:  # skips the offsets, since the containers follow each other
        position += 4 * count
    values: list[int] = []
    for number, (key, cardinality) in enumerate(headers):
        is_run = runs[number // 8] >> number % 8 & 1
        lows, position = _container(data, position, cardinality + 1, bool(is_run))
        values.extend(key << 16 | low for low in lows)
    return values, position


def _container(data: bytes, position: int, cardinality: int, is_run: bool) -> tuple[list[int], int]:
    if is_run:
        (count,) = struct.unpack_from("<H", data, position)
        pairs = struct.unpack_from(f"<{2 * count}H", data, position + 2)
        spans = zip(pairs[::2], pairs[1::2], strict=True)
        return [
            value for first, more in spans for value in range(first, first + more + 1)
        ], position + 2 + 4 * count
    if cardinality <= 4096:
        return list(struct.unpack_from(f"<{cardinality}H", data, position)), position + 2 * cardinality
    words = struct.unpack_from("<1024Q", data, position)
    return [
        64 * i + bit for i, word in enumerate(words) if word for bit in range(64) if word >> bit & 1
    ], position + 8192
