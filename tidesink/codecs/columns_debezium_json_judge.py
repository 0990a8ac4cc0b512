"""The Python codec's word on debezium-json records that the JVM does not read by itself.

It sees only irregular records (``columns_debezium_json_text``); of a topic without schemas, or of one that
ExtractNewRecordState flattened, that is every record. It reads the row too: each value comes back as
``columns_debezium_python`` has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.pandas.functions import pandas_udf

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.columns_base import BAD, DDL, MESSAGE, TRUNCATE, UNPLANNED, WATERMARK
from tidesink.codecs.columns_debezium_python import KEEP, VALUE, ZERO, stored_answer
from tidesink.codecs.debezium.inference import LoneCodec, Told
from tidesink.errors import DecodeError, SchemaMismatchError, SchemaRefusedError, ValueOutOfRangeError
from tidesink.events import (
    UNAVAILABLE,
    ChangeEvent,
    DdlEvent,
    Event,
    Message,
    Op,
    TableSchema,
    Value,
    WatermarkEvent,
)
from tidesink.events import Column as SourceColumn
from tidesink.typemap.target_schema import ShapeColumn, TableShape, merge_shape, shape_of

# A column that the row does not have.
ABSENT: Final = b"\5"
_VERDICT: Final = (
    "struct<kind: string, error: string, reason: string, fields: array<string>, op: string, "
    "commit_ts: bigint, key: array<binary>, before: array<binary>, image: array<binary>, "
    "old: array<binary>, position: string>"
)
_MOST_SCHEMAS: Final = 1024
_OPS: Final = {Op.INSERT: "c", Op.UPDATE: "u", Op.DELETE: "d", Op.UPSERT: "r"}


class Verdict(NamedTuple):
    """What a record is: ``kind`` and why, where it is no row to apply, else the row.

    ``fields`` are the columns the plan lacks, as ``told_columns`` reads them.
    """

    kind: str | None = None
    error: str | None = None
    reason: str | None = None
    fields: list[str] | None = None
    op: str | None = None
    commit_ts: int | None = None
    key: list[bytes | None] | None = None
    before: list[bytes | None] | None = None
    image: list[bytes | None] | None = None
    old: list[bytes | None] | None = None
    position: str | None = None


@dataclass(frozen=True)
class Judging:
    """What judging records of one table takes.

    ``logs``, ``positions``: whether their old rows, and their places at the source, are asked for.
    """

    shape: TableShape
    options: CodecOptions
    definition: TableSchema | None = None
    logs: bool = False
    positions: bool = False


def verdict(value: Column, key: Column, asked: Column, judging: Judging) -> Column:
    """What Python says of the records that it is asked about; null members for the others."""

    def verdicts(topics: Any, keys: Any, values: Any, wanted: Any) -> Any:
        judge = open_judge(judging) if wanted.any() else None
        found = [
            judge(topic, _bytes(one), _bytes(other)) if judge is not None and is_wanted else Verdict()
            for topic, one, other, is_wanted in zip(topics, keys, values, wanted, strict=True)
        ]
        import pandas as pd

        return pd.DataFrame(found, columns=list(Verdict._fields)).astype({"commit_ts": "Int64"})

    import pandas as pd

    # Spark tells what kind of function it is from these.
    names = ("topics", "keys", "values", "wanted")
    verdicts.__annotations__ = {**dict.fromkeys(names, pd.Series), "return": pd.DataFrame}
    # Null where nothing is asked: no bytes go over for the JVM's own records.
    parts = [F.when(asked, part) for part in (F.col("_topic"), key, value)]
    column: Column = pandas_udf(verdicts, _VERDICT)(*parts, asked)  # type: ignore[call-overload]
    return column


def _bytes(found: Any) -> bytes | None:
    return None if found is None else bytes(found)


def open_judge(judging: Judging) -> Callable[[str, bytes | None, bytes | None], Verdict]:
    """A function that judges records of one table by topic, key and value."""
    shape = judging.shape
    known = tuple(SourceColumn(column.name, column.type) for column in shape.columns)
    codec = LoneCodec(judging.options, judging.definition, TableSchema(shape.table, known))
    rows = _Rows(judging, codec)

    def judge(topic: str, key: bytes | None, value: bytes | None) -> Verdict:
        try:
            events = codec.decode(Message(topic, 0, 0, key, value))
            if not events:
                return Verdict(MESSAGE)
            return rows.judged(events[0])
        except DecodeError as error:
            return Verdict(BAD, type(error).__name__, error.message)

    return judge


@dataclass(frozen=True)
class _Column:
    """How one column of an event is stored: by the shape's column, and a function of its values."""

    place: int
    target: ShapeColumn
    answer: Callable[[Value], bytes]
    guessed: bool


class _Rows:
    """Rows of events in the plan's shape; keeps what it knows of each schema."""

    def __init__(self, judging: Judging, codec: LoneCodec) -> None:
        self._shape = judging.shape
        self._codec = codec
        self._logs = judging.logs
        self._positions = judging.positions
        self._known: dict[tuple[int, bool], tuple[TableSchema, dict[str, _Column] | list[str]]] = {}

    def judged(self, event: Event) -> Verdict:
        if not isinstance(event, ChangeEvent):
            ts = event.commit_ts if isinstance(event, DdlEvent | WatermarkEvent) else None
            kind = {DdlEvent: DDL, WatermarkEvent: WATERMARK}.get(type(event), MESSAGE)
            return Verdict(kind, commit_ts=ts)
        if event.table != self._shape.table:
            raise SchemaMismatchError(
                f"the change is of {event.table}, and this topic is read as {self._shape.table}: a debezium "
                "topic must hold one table; name it under tables"
            )
        if event.op is Op.TRUNCATE:
            return Verdict(TRUNCATE, position=self._position(event))
        columns = self._columns(event.schema)
        if isinstance(columns, list):
            return Verdict(UNPLANNED, None, "the record has a column that is new", columns)
        return self._row(event, columns)

    def _row(self, event: ChangeEvent, columns: Mapping[str, _Column]) -> Verdict:
        image = None if event.op is Op.DELETE else self._image(event, columns)
        key, before = (self._key(row, columns) for row in (event.key, event.before))
        old = self._old(event.before, columns) if self._logs else None
        return Verdict(
            op=_OPS[event.op],
            commit_ts=event.commit_ts,
            key=key,
            before=before,
            image=image,
            old=old,
            position=self._position(event),
        )

    def _position(self, event: ChangeEvent) -> str | None:
        return event.position.source_text if self._positions else None

    def _old(
        self, row: Mapping[str, Value] | None, columns: Mapping[str, _Column]
    ) -> list[bytes | None] | None:
        """The whole old row; None where the record has its key alone."""
        if not row or row.keys() != columns.keys():
            return None
        if len(row) < len(self._shape.columns) and all(columns[name].target.key for name in row):
            return None
        return _answers(row, columns, len(self._shape.columns), ABSENT)

    def _image(self, event: ChangeEvent, columns: Mapping[str, _Column]) -> list[bytes | None]:
        image = _answers(event.after or {}, columns, len(self._shape.columns), ABSENT)
        kept = (event.extension or {}).get(UNAVAILABLE, ())
        assert isinstance(kept, tuple | list)  # noqa: S101 - the codec's own
        for name in kept:
            image[columns[name].place] = KEEP
        return image

    def _key(
        self, row: Mapping[str, Value] | None, columns: Mapping[str, _Column]
    ) -> list[bytes | None] | None:
        """The key's columns out of a row; None where it has none, or not all of them."""
        if not row:
            return None
        named = {name: value for name, value in row.items() if name in columns and columns[name].target.key}
        found = _answers(named, columns, len(self._shape.columns), None)
        keys = [one for one, column in zip(found, self._shape.columns, strict=True) if column.key]
        return None if None in keys else keys

    def _columns(self, schema: TableSchema | None) -> dict[str, _Column] | list[str]:
        """How the columns are stored; a list of what the plan lacks, where it lacks something."""
        if schema is None:
            return {}
        place = id(schema), self._codec.bare
        known = self._known.get(place)
        if known is None or known[0] is not schema:
            if len(self._known) >= _MOST_SCHEMAS:
                self._known.clear()
            known = self._known[place] = schema, self._planned(schema)
        return known[1]

    def _planned(self, schema: TableSchema) -> dict[str, _Column] | list[str]:
        told = self._codec.told(schema)
        self._refuse_other_values(told)
        if not self._holds(replace(schema, columns=tuple(one.column for one in told))):
            return [one.text for one in told]
        places = {column.name.lower(): number for number, column in enumerate(self._shape.columns)}
        return {
            one.column.name: _Column(
                places[one.column.name.lower()],
                self._shape.by_name[one.column.name.lower()],
                stored_answer(one.column, self._shape),
                one.guessed,
            )
            for one in told
        }

    def _refuse_other_values(self, told: Iterable[Told]) -> None:
        for one in told:
            column = self._shape.by_name.get(one.column.name.lower())
            if one.guessed and column is not None and column.spark != "string":
                raise SchemaMismatchError(
                    f"column {column.name!r} is {column.spark}, and a record without a schema holds another "
                    "value in it: give a definition of the table"
                )

    def _holds(self, schema: TableSchema) -> bool:
        """Whether the plan's shape holds all columns as they are."""
        names = {column.name.lower() for column in schema.columns}
        keys = tuple(name for name in self._shape.keys if name.lower() in names)
        new = shape_of(schema, keys=keys, zero_date=self._shape.zero_date, time_zone=self._shape.time_zone)
        try:
            merged = merge_shape(self._shape, replace(new, keys=self._shape.keys))
        except SchemaRefusedError:
            return False
        return [(c.name, c.spark) for c in merged.columns] == [(c.name, c.spark) for c in self._shape.columns]


def _answers(
    row: Mapping[str, Value], columns: Mapping[str, _Column], size: int, lacking: bytes | None
) -> list[bytes | None]:
    found = [lacking] * size
    for name, value in row.items():
        column = columns[name]
        found[column.place] = None if value is None else _answer(value, column)
    return found


def _answer(value: Value, column: _Column) -> bytes:
    answer = (
        VALUE + _as_text(value).encode("utf-8", "surrogatepass") if column.guessed else column.answer(value)
    )
    if isinstance(value, str):
        _check_text(answer, column)
    if answer == ZERO and column.target.key:
        raise ValueOutOfRangeError(
            f"column {column.target.name!r} is of the key, and no calendar has its date"
        )
    return answer


def _check_text(answer: bytes, column: _Column) -> None:
    """JSON can name half a surrogate pair, and no target can store one."""
    try:
        answer.decode()
    except UnicodeDecodeError as error:
        raise SchemaMismatchError(f"column {column.target.name!r} has text that is no UTF-8") from error


def _as_text(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return format(value, "f") if isinstance(value, Decimal) else str(value)
