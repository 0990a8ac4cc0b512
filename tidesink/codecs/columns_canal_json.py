"""canal-json as column expressions: one table's messages, read in the JVM.

The bytes are TiCDC's (tiflow c7b2588, new architecture b813e76): one JSON object a message, every value
text or null. A message in TiCDC's own form is read by ``from_json``; any other is *irregular*, and the
Python codec says what it is, in an Arrow function that sees nothing else.

An Arrow function in a query costs every row something, so a plan without ``judges`` leaves it out and
calls an irregular message ``unplanned`` with ``_fields`` ``['']``, which is no column's name; ``judging``
gives the plan that has it.

Of an update's old row the names and the key are read, the other values by a plan that ``logs`` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.columns_base import BAD, DDL, UNPLANNED, WATERMARK
from tidesink.codecs.columns_canal_json_before import logged_before
from tidesink.codecs.columns_canal_json_renamed import under_new_names
from tidesink.codecs.columns_canal_json_row import RowColumns
from tidesink.codecs.columns_canal_json_text import ROW, form_of
from tidesink.codecs.columns_canal_json_types import WRITTEN_AT, is_timed, written_at
from tidesink.codecs.columns_canal_json_verdict import NOT_THE_RECORDS, verdict
from tidesink.codecs.columns_compression import opened
from tidesink.codecs.columns_faults import (
    STRINGS,
    any_null,
    deletes,
    fault,
    first_fault,
    log_columns,
    null,
    output_columns,
    raw_columns,
)
from tidesink.codecs.columns_row_key import NAMED_ROW, row_key_faults, row_key_steps
from tidesink.errors import SchemaMismatchError, UnnamedRowError
from tidesink.events import TableSchema
from tidesink.typemap.render import ZeroDate
from tidesink.typemap.target_schema import (
    TableShape,
    is_row_keyed,
    merge_shape,
    quoted,
    row_keyed,
    shape_of,
    shown_columns,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Stands in ``_fields`` for messages that are not in TiCDC's form.
IRREGULAR: Final = ""
# Before an error's name and its reason in ``_fields``, of a record that could not be judged.
NOT_JUDGED: Final = "\x00"
_ROWS: Final = "array<map<string, string>>"
_OPTIONS: Final = {
    "mode": "PERMISSIVE",
    "columnNameOfCorruptRecord": "corrupt",
    # Spark's own limit is 20 million characters.
    "maxStringLen": str(2**31 - 1),
}


@dataclass(frozen=True)
class CanalJsonColumns:
    """The plan for one canal-json table.

    ``current``: its columns now, in lower case. ``own_key``: the key is the source's and not the config's,
    so that a row which names another key is bad. ``options`` say where rows are that were too
    large; what cannot be asked for them makes a record ``unplanned``, with ``NOT_JUDGED`` in its ``_fields``.
    Under a ``large-message-handle-compression`` an Arrow function opens what is compressed first.
    ``logs``: the frame has the old row, and what happened to it, besides (``columns_base``).
    ``renamed``: rows that have a column under one of these names have it under that one. Under a shape with a
    row key (``typemap.row_key``) the key is read from ``_tidb.rowkey``, and a row without one is bad.
    """

    shape: TableShape
    current: frozenset[str]
    judges: bool = True
    own_key: bool = True
    options: CodecOptions = CodecOptions()  # noqa: RUF009 - it is frozen
    logs: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)

    @property
    def changes_keys(self) -> bool:
        """Always true: an update carries its old key."""
        return True

    @property
    def keeps_values(self) -> bool:
        """Always false: a row comes with all its values."""
        return False

    @property
    def kept_columns(self) -> frozenset[str]:
        """Always empty: a row comes with all its values."""
        return frozenset()

    @property
    def gone(self) -> frozenset[str]:
        """The shape's columns that the table does not have now."""
        return frozenset(self.source.by_name) - self.current

    @cached_property
    def source(self) -> TableShape:
        """The shape of the rows in the messages: without the row key."""
        return shown_columns(self.shape)

    def _parsed(self, text: Column) -> Column:
        return _parsed(text, self.source, self.renamed, by_row_key=self.source is not self.shape)

    def judging(self) -> CanalJsonColumns:
        """The plan that has irregular messages judged."""
        return replace(self, judges=True)

    def decode(self, raw: DataFrame) -> DataFrame:
        """The decoded frame of a raw Kafka frame."""
        frame = raw
        if self.options.large_message_handle_compression != "none":
            value = opened(F.col("value"), most=self.options.max_decompressed_bytes)
            frame = raw.withColumn("value", value)
        for columns in self._steps:
            frame = frame.select(*columns)
        return frame

    @cached_property
    def _steps(self) -> tuple[list[Column], ...]:
        # Made once a plan: a column is a call to the JVM, and a small batch would wait for thousands.
        rows, by_row_key = RowColumns(self.source, self.current), self.source is not self.shape
        everything = F.col("*")
        judged = _judged(rows, self.options, self._parsed) if self.judges else [[everything, *_unjudged()]]
        return (
            _named(),
            [
                everything,
                self._parsed(F.col("text")).alias("parsed"),
                form_of(F.col("text")).alias("form"),
            ],
            [everything, _is_regular(F.col("form"), F.col("parsed"), rows).alias("regular")],
            *judged,
            [everything, *_members()],
            [everything, *_moment(self.source)],
            [everything, F.map_keys("row").alias("names"), F.map_keys("old_row").alias("old_names")],
            [everything, rows.laid_out(F.col("row"), F.col("names")).alias("wire")],
            *(row_key_steps(self.shape) if by_row_key else ()),
            [everything, _image(rows, self.shape).alias("image"), *_row_key(rows, self.shape)],
            [everything, *_keyed(rows, self.shape)],
            *(logged_before(rows) if self.logs else ()),
            _faulty(rows, own_key=self.own_key, logs=self.logs, by_row_key=by_row_key),
            [
                *output_columns(self.shape, fields=F.col("fields"), said=F.col("message").getField("type")),
                *(log_columns(self.shape) if self.logs else ()),
            ],
        )


def canal_json_columns(  # noqa: PLR0913  (all that a plan rests on)
    schema: TableSchema,
    *,
    base: TableShape | None = None,
    keys: tuple[str, ...] | None = None,
    zero_date: ZeroDate = "null",
    time_zone: str = "UTC",
    judges: bool = True,
    options: CodecOptions | None = None,
    logs: bool = False,
    by_row_key: bool = False,
) -> CanalJsonColumns:
    """A plan for a table from its columns as they are now.

    ``base`` is the shape the target has; it is only added to: a column of it that ``schema`` lacks was
    dropped. ``keys`` override the schema's handle key. ``judges``: see the module. ``options``: see
    ``CanalJsonColumns``; so is ``logs``, under which a table needs no key. ``by_row_key``: a table without
    one is kept under its rows' row keys.

    Raises:
        ConfigError: ``keys`` names a column the table does not have.
        SchemaRefusedError: a column's type cannot be one with the base shape's, or the keys are others.
    """
    shape = shape_of(schema, keys=keys, zero_date=zero_date, time_zone=time_zone)
    current = frozenset(column.name.lower() for column in shape.columns)
    if by_row_key and not shape.keys:
        shape = row_keyed(shape)
    merged = shape if base is None else merge_shape(base, shape)
    return CanalJsonColumns(
        merged, current, judges, own_key=keys is None, options=options or CodecOptions(), logs=logs
    )


def _named() -> list[Column]:
    return [*raw_columns(), F.col("value").cast("string").alias("text")]


def _parsed(text: Column, shape: TableShape, renamed: Mapping[str, str], *, by_row_key: bool) -> Column:
    names = (*(column.name for column in shape.columns), *renamed)
    types = ", ".join(f"{quoted(name)} string" for name in names)
    es = "es bigint, " if is_timed(shape) else ""
    row_key = ", rowkey: string" if by_row_key else ""
    parsed = F.from_json(
        text,
        f"corrupt string, database string, `table` string, pkNames array<string>, type string, "
        f"mysqlType struct<{types}>, {es}"
        f"data {_ROWS}, old {_ROWS}, _tidb struct<commitTs: bigint, watermarkTs: bigint{row_key}>",
        _OPTIONS,
    )
    return under_new_names(parsed, shape, renamed) if renamed else parsed


def _is_regular(form: Column, parsed: Column, rows: RowColumns) -> Column:
    """Whether the message is in TiCDC's form and was read without an error; never null."""
    first, old = _first(parsed, "data"), _first(parsed, "old")
    member = parsed.getField
    is_row = member("database").isNotNull() & member("table").isNotNull() & (F.size(first) > 0)
    has_old = (member("type") != "UPDATE") | (old.isNotNull() & ~rows.is_doubtful(F.map_keys(old)))
    whole = form.isNotNull() & parsed.isNotNull() & member("corrupt").isNull()
    plain = is_row & has_old & ~rows.is_doubtful(F.map_keys(first))
    return F.coalesce(whole & ((form != ROW) | plain), F.lit(False))


def _first(parsed: Column, member: str) -> Column:
    return F.get(parsed.getField(member), F.lit(0))


def _unjudged() -> list[Column]:
    wrong = F.when(~F.col("regular"), fault(UNPLANNED, None, "the message is not in TiCDC's own form"))
    return [
        F.lit(0).alias("row_index"),
        F.col("parsed").alias("message"),
        F.col("form").alias("message_form"),
        wrong.alias("refused"),
        F.when(~F.col("regular"), F.array(F.lit(IRREGULAR))).alias("lacking"),
    ]


def _judged(
    rows: RowColumns, options: CodecOptions, parsed: Callable[[Column], Column]
) -> list[list[Column]]:
    """An irregular message as the regular ones that Python made of it, or as its error."""
    everything, judged, text, shape = F.col("*"), F.col("judged"), F.col("judged_text"), rows.shape
    irregular = F.when(~F.col("regular"), F.col("value_bytes"))
    texts = F.coalesce(judged.getField("texts"), F.array(null("string")))
    error, reason = judged.getField("error"), judged.getField("reason")
    waits = error.isin(*(one.__name__ for one in NOT_THE_RECORDS))
    kind = F.when(waits, F.lit(UNPLANNED)).otherwise(F.lit(BAD))
    refused = F.when(
        error.isNotNull(), F.struct(kind.alias("kind"), error.alias("error"), reason.alias("reason"))
    ).when(
        ~F.col("regular") & ~_is_regular(F.col("judged_form"), F.col("judged_parsed"), rows),
        fault(BAD, SchemaMismatchError, "'_tidb' holds a number beyond 64 bits with a sign"),
    )
    return [
        # Null where nothing is to be judged: Python is not asked, and the empty value is no null.
        [everything, verdict(irregular, ~F.col("regular"), shape, options=options).alias("judged")],
        [everything, F.posexplode(texts).alias("row_index", "judged_text")],
        [
            everything,
            parsed(text).alias("judged_parsed"),
            form_of(text).alias("judged_form"),
        ],
        [
            everything,
            F.when(text.isNull(), F.col("parsed")).otherwise(F.col("judged_parsed")).alias("message"),
            F.coalesce("judged_form", "form").alias("message_form"),
            refused.alias("refused"),
            F.when(waits, F.array(F.concat(F.lit(NOT_JUDGED), error, F.lit(NOT_JUDGED), reason)))
            .otherwise(null(STRINGS))
            .alias("lacking"),
        ],
    ]


def _members() -> list[Column]:
    """The message's members; ``row`` is null for what is no row change."""
    message = F.col("message")
    is_row = F.col("refused").isNull() & (F.col("message_form") == ROW)
    extension = message.getField("_tidb")
    updates = is_row & (message.getField("type") == "UPDATE")
    moment = F.coalesce(extension.getField("commitTs"), extension.getField("watermarkTs"))
    return [
        F.when(is_row, _first(message, "data")).alias("row"),
        F.when(updates, _first(message, "old")).alias("old_row"),
        F.when(F.col("refused").isNull(), moment).alias("event_ts"),
        null("bigint").alias("control_ts"),
    ]


def _moment(shape: TableShape) -> list[Column]:
    """When the row was committed, where that says how it is read."""
    if not is_timed(shape):
        return []
    message = F.col("message")
    moment = written_at(message.getField("_tidb").getField("commitTs"), message.getField("es"))
    return [moment.alias(WRITTEN_AT)]


def _image(rows: RowColumns, shape: TableShape) -> Column:
    """The row in the shape's types, its row key too where that is its key."""
    if not is_row_keyed(shape):
        return rows.image()
    hidden = (F.col(NAMED_ROW).getField(c.name).alias(c.name) for c in shape.key_columns)
    return F.struct(*hidden, *rows.values())


def _row_key(rows: RowColumns, shape: TableShape) -> list[Column]:
    old = F.col("old_row")
    if is_row_keyed(shape):  # an update keeps its row, whatever its columns were
        return [null(f"struct<{shape.key_ddl}>").alias("old_key")]
    changed = old.isNotNull() & rows.key_differs(old)
    return [F.when(changed, rows.old_key(old)).alias("old_key")]


def _keyed(rows: RowColumns, shape: TableShape) -> list[Column]:
    names = [column.name for column in shape.key_columns]
    key = F.struct(*(F.col("image").getField(name).alias(name) for name in names))
    new = F.array_except(F.array_distinct("names"), rows.known)
    return [
        key.alias("row_key"),
        F.when(F.col("names") != rows.usual_names, new).alias("new_names"),
        rows.zero_dates().alias("row_zero_dates"),
        deletes(F.col("message").getField("type") == "DELETE").alias("row_kind"),
    ]


def _faulty(rows: RowColumns, *, own_key: bool, logs: bool, by_row_key: bool) -> list[Column]:
    """What each message is that is no row to apply."""
    old_key = F.when(~F.col("old_key").eqNullSafe(F.col("row_key")), F.col("old_key"))
    lacking = F.coalesce(F.col("lacking"), F.when(F.size("new_names") > 0, F.col("new_names")))
    return [
        F.col("*"),
        F.when(F.col("refused").isNotNull(), F.col("refused"))
        .otherwise(_faults(rows, own_key=own_key, logs=logs, by_row_key=by_row_key))
        .alias("fault"),
        old_key.alias("row_old_key"),
        lacking.alias("fields"),
    ]


def _faults(rows: RowColumns, *, own_key: bool, logs: bool, by_row_key: bool) -> Column:
    message, form = F.col("message"), F.col("message_form")
    table, key_names = rows.shape.table, [column.name for column in rows.shape.key_columns]
    foreign = (message.getField("database") != table.schema) | (message.getField("table") != table.name)
    unknown_old = F.when(
        F.col("old_names") != F.col("names"), F.size(F.array_except("old_names", "names")) > 0
    )
    unnamed = f"a key column ({', '.join(key_names)}) is null or not in the row, so the change names no row"
    return first_fault(
        [
            (form == "ddl", fault(DDL)),
            (form == "watermark", fault(WATERMARK)),
            (foreign, fault(BAD, SchemaMismatchError, f"a message of another table than {table}")),
            (F.size("new_names") > 0, fault(UNPLANNED, None, "the row has a column that is new")),
            *([_other_key(message.getField("pkNames"), key_names)] if own_key else []),
            *rows.type_faults(message.getField("mysqlType")),
            *rows.faults(),
            (
                any_null("row_key", key_names),
                fault(BAD, UnnamedRowError, f"{unnamed}: set keys to columns that no row lacks"),
            ),
            (unknown_old, fault(BAD, SchemaMismatchError, "'old' has a column that 'data' has not")),
            *rows.old_key_faults(),
            *(rows.before_faults() if logs else ()),
            *(row_key_faults() if by_row_key else ()),
        ]
    )


def _other_key(named: Column, key_names: list[str]) -> tuple[Column, Column]:
    """Whether a row names its key, and another one than the table's."""
    own = F.array(*(F.lit(name) for name in key_names)).cast(STRINGS)
    differs = (F.size(F.array_except(named, own)) > 0) | (F.size(F.array_except(own, named)) > 0)
    reason = (
        f"the row's pkNames are not the table's key ({', '.join(key_names)}): the source's key was changed. "
        "Name the key to go by under tables: keys"
    )
    return (named != own) & (F.size(named) > 0) & differs, fault(BAD, SchemaMismatchError, reason)
