"""Delta's partitions, for the tasks that write its files: how the log and folders spell their values."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import numpy as np
import pyarrow as pa

from tidesink.errors import TargetError
from tidesink.sinks.targets.lake.partitions import Partition, folder_of, grouped, iso_text
from tidesink.sinks.targets.lake.rows import FileColumn

# Hive's name for NULL: Spark and Delta take a text that equals it for NULL.
NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
# What Spark escapes in the names of folders.
_ESCAPED: Final = re.compile(r"""[\x01-\x1f"#%'*/:=?\\\x7f{\[\]^]""")


@dataclass(frozen=True)
class SplitByColumns:
    """The ``Split`` of columns, which files leave out.

    ``named``: folders say the values, as Hive's do. Tables with column mapping have short ones at random.
    """

    columns: tuple[FileColumn, ...]
    named: bool

    def __call__(self, rows: pa.Table) -> Iterator[tuple[Partition, pa.Table]]:
        """Each partition with its rows.

        Raises:
            TargetError: a row has a text that Delta would give back as NULL.
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
    """Refuse a text in a partition column that Delta gives back as NULL.

    Raises:
        TargetError: names the column.
    """
    if text in ("", NULL_FOLDER):
        raise TargetError(
            f"a row has {f'the text {text}' if text else 'an empty text'} in {column}, which the table is "
            "partitioned by, where Delta keeps none: it would be NULL, and nothing was written. Partition "
            "the table by another column",
            table=table,
            column=column,
        )


def escaped(text: str) -> str:
    """A text in the name of a folder, as Spark has it."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


def partition_text(value: pa.Scalar) -> str | None:
    """A value in an entry of the log."""
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
    """The value that an entry of the log says; None for an instant in a time zone that it does not say."""
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
