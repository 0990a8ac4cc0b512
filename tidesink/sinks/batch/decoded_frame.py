"""Kafka records as a decoded Spark frame, one row an event: what every mode of a table begins with.

==================  ==========================  ====================================================
column              type                        meaning
==================  ==========================  ====================================================
``_topic``          string
``_partition``      int
``_offset``         bigint
``_index``          int                         which event of the message, from 0
``_kind``           string                      one of ``records.KINDS``
``_commit_ts``      bigint                      null where the wire does not say
``_error``          string                      ``bad``: a class name of ``tidesink.errors``
``_reason``         string                      ``bad``: what is wrong; a row: a warning about it
``_zero_dates``     array<string>               columns whose date no calendar has was made null
``_schema_key_id``  bigint                      ``unplanned`` and ``bad``, of Avro
``_schema_value_id``  bigint                    ``unplanned`` and ``bad``, of Avro
``_fields``         array<string>               ``unplanned``: what the plan lacks
``_key``            binary                      the record's key, for ``bad`` and ``ddl`` alone
``_value``          binary                      the record's value, for ``bad`` and ``ddl`` alone
``key``             struct of the key columns   rows only
``old_key``         struct of the key columns   an update which changes the key, else null
``after``           struct of all columns       upserts only
``_wire_op``        string                      upserts: ``insert`` or ``update``, null where nothing tells
``_kept``           array<string>               only of a plan that ``keeps_values``: the names of columns
                                                of ``after`` whose value the source did not send, so that
                                                what is stored stays; null where it sent all
``_unmatched``      boolean                     only in frames under a filter: the delete is an upsert whose
                                                row does not satisfy it; never null
``_change``         string                      only of a plan that ``logs``: ``insert``, ``update``,
                                                ``delete``, or ``upsert`` where nothing tells
``before``          struct of all columns       likewise: the row before an update, or the deleted one;
                                                null where the wire has it not, or its key alone
``_before_kept``    array<string>               likewise: as ``_kept``, of ``before``
``_position``       string                      only of a plan with ``positions``: where the change stands
                                                at its source, ``Position.source_text``
==================  ==========================  ====================================================

``unplanned`` is a message the plan was not made for (an unknown schema id, an unknown column): look it up,
make the plan again, decode the batch again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import NAMES_TYPE, ChangeTable
from tidesink.events import SOURCE_SEPARATOR, Op
from tidesink.sinks.batch.change_log import log_shape
from tidesink.sinks.batch.filtering import RowFilterRule
from tidesink.sinks.batch.records import (
    DELETE,
    MESSAGE,
    NO_RULES,
    TRUNCATE,
    UPSERT,
    DecodedRecords,
    EventRules,
    OtherRecord,
    RecordDecoder,
    decoded_records,
)
from tidesink.sinks.batch.reduce import WARNING, row_keys
from tidesink.sinks.batch.target_rows import OutputRows, TargetRows
from tidesink.sinks.spark.errors import Reporting
from tidesink.typemap.target_schema import TableShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The column of a change's place in the source's log, where a plan is asked for it.
POSITION: Final = "_position"

_STRINGS: Final = "array<string>"
_WIRE_OPS: Final = (Op.INSERT.value, Op.UPDATE.value)
# The members of a frame that every record has; ``OtherRecord`` gives those of what is no row.
_OF_OTHERS: Final = {
    "_topic": "topic",
    "_partition": "partition",
    "_offset": "offset",
    "_index": "index",
    "_kind": "kind",
    "_commit_ts": "commit_ts",
    "_error": "error",
    "_reason": "reason",
    "_schema_key_id": "key_id",
    "_schema_value_id": "value_id",
    "_fields": "fields",
    "_key": "key",
    "_value": "value",
}


class Decode(Protocol):
    """How one table's records become a decoded frame."""

    @property
    def shape(self) -> TableShape:
        """What ``after`` holds: the columns of every writer schema planned for, and the base shape's."""

    @property
    def changes_keys(self) -> bool:
        """Whether a record may stand for several rows: it has an update's old key, or several events."""

    @property
    def keeps_values(self) -> bool:
        """Whether the decoded frame has ``_kept``: a row may lack values that are to stay as stored.

        It does not change with a topic's records: a config that asks for what this forbids is refused at
        once.
        """

    @property
    def kept_columns(self) -> frozenset[str]:
        """The columns of the shape that ``_kept`` may name: each costs the reduction an aggregate."""

    @property
    def gone(self) -> frozenset[str]:
        """Columns of the shape, in lower case, that the source is known not to have any more."""

    def decode(self, raw: DataFrame, rules: EventRules = NO_RULES) -> DataFrame:
        """The decoded frame of a frame of Kafka records; lazy, in one pass."""


@dataclass(frozen=True)
class DecodePlan:
    """How one table's records are decoded, by all that is known of its writers' schemas.

    ``logs``: the frame has the old row, and what happened to it, besides. ``positions``: it has where a
    change stands at its source. ``rules``: what a batch asks of its events besides. ``output``: the rows that
    tasks give as the target has them; None: as they are. ``row_filter``: rows that do not satisfy it are
    deletes. ``ignores_nulls``: a null leaves the stored value, as one that was not sent. Tasks do these
    three; a frame is projected and filtered by whoever asks for it.
    """

    rows: TargetRows
    decoder: RecordDecoder
    keeps_values: bool = False
    gone: frozenset[str] = frozenset()
    logs: bool = False
    positions: bool = False
    rules: EventRules = NO_RULES
    output: OutputRows | None = None
    row_filter: RowFilterRule | None = None
    ignores_nulls: bool = False

    @property
    def target_rows(self) -> OutputRows:
        """What makes the target's rows of the shape's."""
        return self.output or OutputRows(self.shape)

    @property
    def target_shape(self) -> TableShape:
        """The shape of the rows that tasks give."""
        shape = self.target_rows.shape
        return log_shape(shape) if self.logs else shape

    @property
    def shape(self) -> TableShape:
        """As ``Decode``."""
        return self.rows.shape

    @property
    def changes_keys(self) -> bool:
        """As ``Decode``: a record may hold several events, or an update come with its old key."""
        return True

    @property
    def kept_columns(self) -> frozenset[str]:
        """As ``Decode``: a source leaves out long texts and bytes alone."""
        if not self.keeps_values:
            return frozenset()
        columns = (column for column in self.shape.columns if not column.key)
        return frozenset(column.name for column in columns if column.spark in ("string", "binary"))

    def with_shape(self, shape: TableShape) -> DecodePlan:
        """The plan, whose rows are put into another shape of the same columns."""
        return replace(self, rows=replace(self.rows, shape=shape))

    def with_output(self, output: OutputRows) -> DecodePlan:
        """The plan, whose tasks give rows as the target has them."""
        return replace(self, output=output)

    def with_rules(self, rules: EventRules) -> DecodePlan:
        """The plan, for a batch that asks more of its events."""
        return replace(self, rules=rules)

    def decode(self, raw: DataFrame, rules: EventRules = NO_RULES) -> DataFrame:
        """As ``Decode``."""
        return raw.mapInArrow(Reporting(DecodeTask(self.with_rules(rules))), self.frame.ddl)

    @cached_property
    def frame(self) -> DecodedColumns:
        """The columns of the decoded frame."""
        return DecodedColumns(
            self.shape, keeps_values=self.keeps_values, logs=self.logs, positions=self.positions
        )


class DecodedColumns:
    """The columns of a decoded frame."""

    def __init__(self, shape: TableShape, *, keeps_values: bool, logs: bool, positions: bool) -> None:
        key, row = f"struct<{shape.key_ddl}>", f"struct<{shape.ddl}>"
        self._columns = {
            "_topic": "string",
            "_partition": "int",
            "_offset": "bigint",
            "_index": "int",
            "_kind": "string",
            "_commit_ts": "bigint",
            "_error": "string",
            "_reason": "string",
            "_zero_dates": _STRINGS,
            "_schema_key_id": "bigint",
            "_schema_value_id": "bigint",
            "_fields": _STRINGS,
            "_key": "binary",
            "_value": "binary",
            "key": key,
            "old_key": key,
            "after": row,
            "_wire_op": "string",
            **({"_kept": _STRINGS} if keeps_values else {}),
            **({"_change": "string", "before": row, "_before_kept": _STRINGS} if logs else {}),
            **({POSITION: "string"} if positions else {}),
        }
        self._shape = shape

    @property
    def ddl(self) -> str:
        """As Spark DDL text."""
        return ", ".join(f"{name} {kind}" for name, kind in self._columns.items())

    def schema(self, rows: TargetRows) -> pa.Schema:
        """As Arrow."""
        own = {
            "key": rows.key_type,
            "old_key": rows.key_type,
            "after": rows.row_type,
            "before": rows.row_type,
        }
        plain = {"string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "binary": pa.binary()}
        plain[_STRINGS] = NAMES_TYPE
        # A struct without members is false.
        kinds = {name: own[name] if name in own else plain[kind] for name, kind in self._columns.items()}
        return pa.schema(list(kinds.items()))


@dataclass(frozen=True)
class DecodeTask:
    """Batches of Kafka records to batches of a decoded frame; runs in Spark's Python workers."""

    plan: DecodePlan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of the decoded frame."""
        for batch in batches:
            if batch.num_rows:
                yield from self._decoded(batch)

    def _decoded(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        plan = self.plan
        found = decoded_records(batch, plan.decoder, plan.rows, logs=plan.logs, rules=plan.rules)
        yield from frame_rows(found, plan)


def frame_rows(found: DecodedRecords, plan: DecodePlan) -> Iterator[pa.RecordBatch]:
    """Decoded records as rows of the decoded frame."""
    schema = plan.frame.schema(plan.rows)
    for table in found.tables:
        yield from _as_schema(_changes(table, plan), schema)
    if found.others:
        yield _others(found.others, schema)
    for silent in found.silent:
        yield from _as_schema(_silent(silent), schema)


def _as_schema(columns: dict[str, Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Columns, with nulls for those that are not given."""
    count = len(columns["_offset"])
    given = [columns.get(name) for name in schema.names]
    arrays = [
        pa.nulls(count, one.type) if got is None else got for one, got in zip(schema, given, strict=True)
    ]
    yield from pa.table(arrays, schema=schema).to_batches()


def _others(others: Sequence[OtherRecord], schema: pa.Schema) -> pa.RecordBatch:
    columns = {
        name: pa.array([getattr(one, member) for one in others], schema.field(name).type)
        for name, member in _OF_OTHERS.items()
    }
    return next(_as_schema(columns, schema))


def _silent(records: pa.RecordBatch) -> dict[str, Any]:
    count = records.num_rows
    return {
        "_topic": records.column("topic").cast(pa.string()),
        "_partition": records.column("partition").cast(pa.int32()),
        "_offset": records.column("offset"),
        "_index": pa.array(np.zeros(count, np.int32)),
        "_kind": pa.repeat(pa.scalar(MESSAGE), count),
    }


def _changes(table: ChangeTable, plan: DecodePlan) -> dict[str, Any]:
    """Row changes and truncates."""
    rows, whole = plan.rows, table.rows
    ops = whole["op"].combine_chunks().dictionary_decode()
    deleted, truncated = pc.equal(ops, Op.DELETE.value), pc.equal(ops, Op.TRUNCATE.value)
    written = pc.invert(pc.or_(deleted, truncated))
    kinds = pc.if_else(truncated, TRUNCATE, pc.if_else(deleted, DELETE, UPSERT))
    after = rows.row(table, _where(written, whole["after"].combine_chunks()))
    key, old_key = _keys(table, plan, pc.invert(truncated))
    found = {
        "_topic": whole["topic"].combine_chunks().dictionary_decode(),
        "_partition": whole["partition"].combine_chunks(),
        "_offset": whole["offset"].combine_chunks(),
        "_index": whole["index"].combine_chunks(),
        "_kind": kinds,
        "_commit_ts": whole["commit_ts"].combine_chunks(),
        "_reason": whole[WARNING].combine_chunks() if WARNING in whole.column_names else None,
        "_zero_dates": _where(written, rows.spelt(whole["zero_dates"].combine_chunks())),
        "key": key,
        "old_key": old_key,
        "after": after,
        "_wire_op": _where(pc.and_(written, pc.is_in(ops, pa.array(_WIRE_OPS))), ops),
    }
    if plan.keeps_values:
        found["_kept"] = _where(written, rows.spelt(whole["unavailable"].combine_chunks()))
    if plan.logs:
        before, kept = plan.decoder.old_rows(table)
        found["_change"] = _where(pc.invert(truncated), ops)
        found["before"] = rows.row(table, before)
        found["_before_kept"] = None if kept is None else rows.spelt(kept)
    if plan.positions:
        found[POSITION] = source_texts(whole["source"].combine_chunks())
    return found


def _keys(table: ChangeTable, plan: DecodePlan, named: pa.Array) -> tuple[pa.Array, pa.Array]:
    rows = plan.rows
    if not rows.keys:
        nothing = pa.nulls(table.rows.num_rows, rows.key_type)
        return nothing, nothing
    old_keys = plan.decoder.old_keys
    new, old, moved = row_keys(table, rows.keys, rows.key_values, old_keys=old_keys)
    key, was = (rows.key(pa.StructArray.from_arrays(columns, list(rows.keys))) for columns in (new, old))
    return _where(named, key), _where(pc.and_(named, pa.array(moved)), was)


def _where(flags: pa.Array, values: pa.Array) -> pa.Array:
    """The values where the flag is set; null elsewhere."""
    if pc.all(flags).as_py() is not False:
        return values
    return pc.if_else(flags, values, pa.scalar(None, values.type))


def wire_ops(ops: pa.ChunkedArray) -> pa.Array:
    """``insert`` or ``update`` where the wire tells, else ``upsert``: what a row's metadata says of it."""
    found = ops.combine_chunks().dictionary_decode()
    return pc.if_else(pc.is_in(found, pa.array(_WIRE_OPS)), found, pa.scalar(UPSERT))


def source_texts(source: pa.Array) -> pa.Array:
    """Positions at the source as text, as ``Position.source_text``."""
    numbers = source.cast(pa.list_(pa.string()))
    return pc.binary_join(numbers, SOURCE_SEPARATOR)
