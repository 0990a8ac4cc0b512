"""``debezium-json`` as column expressions: records with their schemas in the JVM, all others by Python.

The bytes are Debezium's (3.5.0.Final with Kafka Connect 4.3's JsonConverter) or TiCDC's (b813e76). A record
in its producer's own form, whose schema the plan knows, is read by ``from_json``; any other is *irregular*
and read by the Python codec, in an Arrow function that sees nothing else: every record of a topic without
schemas, or of flattened rows.

An Arrow function in a query costs every row something, so a plan without ``judges`` leaves it out and
calls an irregular record ``unplanned`` with ``_fields`` ``['']``, which is no column's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.codecs.columns_base import BAD, MESSAGE, POSITION, UNPLANNED, WATERMARK
from tidesink.codecs.columns_debezium_before import (
    change_word,
    logged_before,
    prepared_before,
)
from tidesink.codecs.columns_debezium_faults import envelope_faults, is_delete, unnamed_faults
from tidesink.codecs.columns_debezium_json_judge import Judging, verdict
from tidesink.codecs.columns_debezium_json_judged import JudgedRows
from tidesink.codecs.columns_debezium_json_record import JsonRecord, texts_of
from tidesink.codecs.columns_debezium_json_schema import JsonSchema
from tidesink.codecs.columns_debezium_keys import old_key, row_key, value_fault
from tidesink.codecs.columns_debezium_record import Images
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
    unnamed_delete,
)
from tidesink.typemap.target_schema import TableShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Stands in ``_fields`` for records that are not in the form, or of a schema, that the plan knows.
IRREGULAR: Final = ""


@dataclass(frozen=True)
class DebeziumJsonColumns:
    """The plan for one debezium-json table.

    ``keys``, ``values`` and ``watermarks`` read what is in the JVM's form, by the schemas of
    ``key_schemas`` and ``value_schemas``. ``own_key``: the key is the key record's. ``unwrapped``: the topic
    holds flattened rows, where a null value is a delete. ``gone``: the shape's columns, in lower case, that
    the newest schema of rows does not have. ``logs``: the frame has the old row, and what
    happened to it, besides (``columns_base``). ``positions``: it has where a change stands at its source.
    """

    shape: TableShape
    keys: tuple[JsonRecord, ...]
    values: tuple[JsonRecord, ...]
    watermarks: tuple[JsonRecord, ...]
    key_schemas: Mapping[int, JsonSchema]
    value_schemas: Mapping[int, JsonSchema]
    judging: Judging
    judges: bool = True
    own_key: bool = True
    gone: frozenset[str] = frozenset()
    logs: bool = False
    positions: bool = False

    @property
    def changes_keys(self) -> bool:
        """Whether an update may come with its old key, so that it stands for two rows."""
        ticdc = any(record.schema.is_ticdc for record in self.values)
        if not self.shape.keys:
            return False
        return ticdc or not (self.own_key and self.keys)

    @property
    def keeps_values(self) -> bool:
        """Always true: any record of this protocol may leave a value out."""
        return True

    @property
    def kept_columns(self) -> frozenset[str]:
        """Those whose values can say that they were not sent: any, where Python may read the record."""
        if self.judges:
            return frozenset(column.name for column in self.shape.columns)
        return frozenset(name for record in self.values for name in record.keeps)

    def decode(self, raw: DataFrame) -> DataFrame:
        """The decoded frame of a raw Kafka frame."""
        frame = raw
        for columns in self._steps:
            frame = frame.select(*columns)
        return frame

    @property
    def unwrapped(self) -> bool:
        """Whether a null value is a delete."""
        return self.judging.options.debezium_unwrapped

    @cached_property
    def _steps(self) -> tuple[list[Column], ...]:
        # Made once a plan: a column is a call to the JVM, and a small batch would wait for thousands.
        everything = F.col("*")
        records = (*self.keys, *self.values, *self.watermarks)
        prepared = [column for record in records for column in record.prepared()]
        prepared += prepared_before(self.values) if self.logs else []
        last = output_columns(self.shape, fields=F.col("lacking"), keeps=F.col("kept"), said=F.col("op"))
        judged = verdict(F.col("value_bytes"), F.col("key_bytes"), ~F.col("regular"), self.judging)
        return (
            raw_columns(),
            *texts_of("key", self.key_schemas),
            *texts_of("value", self.value_schemas),
            [everything, *(record.parsed().alias(record.parsed_name) for record in records)],
            [everything, *(record.decoded().alias(record.name) for record in records)],
            *([[everything, *prepared]] if prepared else []),
            [everything, _is_regular(self).alias("regular")],
            *([[everything, judged.alias("judged")]] if self.judges else []),
            [everything, *_converted(self)],
            [everything, *_keyed(self)],
            [everything, *_judged(self)],
            [
                *last,
                *(log_columns(self.shape) if self.logs else ()),
                *((F.col(POSITION),) if self.positions else ()),
            ],
        )


def _is_regular(plan: DebeziumJsonColumns) -> Column:
    """Whether the JVM reads the record; never null."""
    key_read, value_read = Images(plan.keys).complete(), Images(plan.values).complete()
    row = value_read & (F.col("key_bytes").isNull() | key_read)
    # What changes no row is looked at without its key.
    regular = row | Images(plan.watermarks).complete()
    return regular if plan.unwrapped else regular | F.col("value_bytes").isNull()


def _converted(plan: DebeziumJsonColumns) -> list[Column]:
    """The records' columns in the shape's types, and what the envelope says."""
    shape, values, watermarks = plan.shape, Images(plan.values), Images(plan.watermarks)
    no_key = null(f"struct<{shape.key_ddl}>")
    found = {
        "record_key": Images(plan.keys).struct(shape.key_ddl),
        "image": values.struct(shape.ddl),
        "before_key": values.old_key(shape.key_ddl) if plan.changes_keys else no_key,
        "op": values.member("op", "string"),
        "event_ts": F.coalesce(
            values.source("commit_ts", "bigint"), watermarks.source("commit_ts", "bigint")
        ),
        "kept": values.kept(),
    }
    if plan.positions:
        found[POSITION] = values.position()
    if plan.logs:
        found |= logged_before(plan.values, shape, plan.keys)
    if plan.judges:
        rows = JudgedRows(shape, F.col("judged"))
        told = rows.columns(old_keys=plan.changes_keys) | (rows.old_row() if plan.logs else {})
        # Null where Python was not asked.
        found = {name: F.when(rows.asked, told[name]).otherwise(column) for name, column in found.items()}
    return [
        *(column.alias(name) for name, column in found.items()),
        *(values.source(name, "string").alias(f"source_{name}") for name in ("db", "schema", "table")),
        null("bigint").alias("control_ts"),
    ]


def _keyed(plan: DebeziumJsonColumns) -> list[Column]:
    """The row's key, and the first of its values that could not be read."""
    bad = value_fault(plan.keys, plan.values, logs=plan.logs)
    if plan.judges:
        rows = JudgedRows(plan.shape, F.col("judged"))
        wrong = [*rows.faults("image"), *(rows.old_faults("before_image") if plan.logs else ())]
        bad = F.when(rows.asked, first_fault(wrong)).otherwise(bad)
    return [row_key(plan.shape, own_key=plan.own_key).alias("row_key"), bad.alias("bad_value")]


def _judged(plan: DebeziumJsonColumns) -> list[Column]:
    """What each record is: its kind and, where it cannot be used, why."""
    zeros = Images(plan.values).zero_dates("image")
    lacking = F.when(~F.col("regular"), F.array(F.lit(IRREGULAR))).otherwise(null(STRINGS))
    if plan.judges:
        rows = JudgedRows(plan.shape, F.col("judged"))
        zeros = F.when(rows.asked, rows.zero_dates()).otherwise(zeros)
        lacking = F.col("judged").getField("fields")
    return [
        _faults(plan).alias("fault"),
        deletes(is_delete()).alias("row_kind"),
        old_key().alias("row_old_key"),
        zeros.alias("row_zero_dates"),
        F.lit(0).alias("row_index"),
        lacking.alias("lacking"),
        *([change_word().alias("row_change")] if plan.logs else []),
    ]


def _faults(plan: DebeziumJsonColumns) -> Column:
    names = [column.name for column in plan.shape.key_columns]
    value, regular = F.col("value_bytes"), F.col("regular")
    envelope = envelope_faults(plan.shape.table)
    fine = reduce(Column.__and__, (~condition for condition, _ in envelope))
    fine &= Images(plan.values).complete() & regular
    fine &= F.col("bad_value").isNull() & ~any_null("row_key", names)
    lost = unnamed_delete(is_delete(), plan.shape) if plan.logs else []
    for condition, _ in lost:
        fine &= ~condition
    # The first branch is every good row's: the rest is asked of records with something about them.
    chosen = F.when(fine, fault(None))
    for condition, found in (
        *(() if plan.unwrapped else ((value.isNull(), fault(MESSAGE)),)),
        *_irregular_faults(plan),
        (Images(plan.watermarks).complete(), fault(WATERMARK)),
        *((regular & condition, found) for condition, found in envelope),
        (F.col("bad_value").isNotNull(), F.col("bad_value")),
        *lost,
        *unnamed_faults(names),
    ):
        chosen = chosen.when(condition, found)
    return chosen


def _irregular_faults(plan: DebeziumJsonColumns) -> list[tuple[Column, Column]]:
    if not plan.judges:
        unknown = fault(UNPLANNED, None, "the record's schema, or its form, is new")
        return [(~F.col("regular"), unknown)]
    judged = F.col("judged")
    kind, error, reason = (judged.getField(name) for name in ("kind", "error", "reason"))
    return [
        (kind == BAD, F.struct(kind.alias("kind"), error.alias("error"), reason.alias("reason"))),
        (
            kind.isNotNull(),
            F.struct(kind.alias("kind"), null("string").alias("error"), reason.alias("reason")),
        ),
    ]
