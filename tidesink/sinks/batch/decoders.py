"""Decode plans, and writer schemas by registry id.

Tasks do not call the schema registry. A record whose schema the driver does not know yet is returned as
*unplanned*. The driver then looks the schema up and runs the batch again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.batch import Fault
from tidesink.codecs.framing import HEADER_SIZE, ids_in_headers, is_glue
from tidesink.errors import FramingError, SchemaMismatchError, SchemaNotFoundError, TidesinkError
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.batch.filtering import RowFilterRule
from tidesink.sinks.batch.records import NO_RULES, EventRules, TableDecoder, Unplanned
from tidesink.sinks.batch.target_rows import TargetRows
from tidesink.sinks.targets.modes import log_shape
from tidesink.typemap.target_schema import TableShape

_NO_ID = -1
# By protocol: the remedy for records with AWS Glue's header.
UNDER_CONFLUENT: Final = {
    "flat-avro": (
        "Configure the changefeed with a schema-registry URL. Without a worker, tidesink decode and "
        "open_codec(glue=...) read such messages."
    ),
    "debezium-avro": (
        "Configure the connector with Confluent's or Apicurio's AvroConverter instead of AWS's, or the "
        "changefeed with a schema-registry URL. Then read the topic from the first record that was written "
        "this way."
    ),
}


@dataclass(frozen=True)
class DecodePlan:
    """A table's conversion from records to rows of the target, based on its known writer schemas.

    Attributes:
        rows: Converts rows of every planned writer schema into one shape. The shape has the columns of the
            base shape and of all these schemas.
        decoder: Decodes the table's records.
        keeps_values: True if a row may lack values, so that stored values are kept. It does not depend on
            the records of a topic, so a config that conflicts with it is refused at once.
        gone: Columns of ``shape``, in lower case, that the source no longer has.
        logs: True if every change is a row of a log.
        rules: Conditions of a batch on its events.
        row_filter: The table's filter. A row that does not satisfy it is a delete.
        ignores_nulls: True if a null keeps the stored value, like a value that was not sent.
        warnings: Warnings about properties of columns that the topic does not report.
    """

    rows: TargetRows
    decoder: TableDecoder
    keeps_values: bool = False
    gone: frozenset[str] = frozenset()
    logs: bool = False
    rules: EventRules = NO_RULES
    row_filter: RowFilterRule | None = None
    ignores_nulls: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def shape(self) -> TableShape:
        """The table as in the target, without the columns that its mode adds."""
        return self.rows.target_shape

    @property
    def packed_shape(self) -> TableShape:
        """The shape of the rows that tasks return."""
        return log_shape(self.shape) if self.logs else self.shape

    def with_rows_in(self, shape: TableShape) -> DecodePlan:
        """Returns the plan with another shape of the same columns for its rows."""
        return replace(self, rows=replace(self.rows, shape=shape))

    def for_batch(self, number: int, rules: EventRules, *, marks_deletes: bool) -> DecodePlan:
        """Returns the plan of batch ``number``. ``marks_deletes``: True if deleted rows stay, marked."""
        rows = self.rows
        if rows.metadata is not None:
            metadata = replace(rows.metadata, batch=number, marks_deletes=marks_deletes)
            rows = replace(rows, metadata=metadata)
        return replace(self, rows=rows, rules=rules)


@dataclass(frozen=True)
class SideSchemas:
    """The schemas of a topic's keys, or of its values, by registry id.

    ``texts``: schemas that can be used. ``refused``: reasons for schemas that cannot be used. ``unknown``:
    reasons for ids that were not found.
    """

    texts: Mapping[int, str]
    refused: Mapping[int, str] = field(default_factory=dict)
    unknown: Mapping[int, str] = field(default_factory=dict)

    def fault(self, schema_id: int, part: str) -> TidesinkError | None:
        """Returns the error for records of a schema, or None if the schema was not looked up yet."""
        if schema_id in self.refused:
            return SchemaMismatchError(f"{part}: {self.refused[schema_id]}")
        if schema_id in self.unknown:
            return SchemaNotFoundError(f"{part}: {self.unknown[schema_id]}")
        return None


@dataclass(frozen=True)
class RegisteredSchemas:
    """The schemas of a topic's records."""

    keys: SideSchemas
    values: SideSchemas

    def unplanned(self, records: pa.RecordBatch, *, first: str = "key") -> Iterator[Unplanned]:
        """Yields the records with an id that cannot be used. ``first``: the part that is checked first."""
        sides = {"key": self.keys, "value": self.values}
        parts = [first, *(part for part in sides if part != first)]
        ids = {part: schema_ids(records.column(part)) for part in parts}
        odd = np.zeros(records.num_rows, np.bool_)
        for part, side in sides.items():
            odd |= (ids[part] != _NO_ID) & ~np.isin(ids[part], list(side.texts))
        for record in np.flatnonzero(odd).tolist():
            faults = [
                sides[part].fault(int(ids[part][record]), part)
                for part in parts
                if ids[part][record] != _NO_ID
            ]
            fault = next((one for one in faults if one is not None), None)
            yield Unplanned(record, "a schema id is new", fault)

    @property
    def texts(self) -> dict[int, str]:
        """All usable schemas by id."""
        return {**self.keys.texts, **self.values.texts}


def in_order(history: Sequence[int], ids: Iterable[int]) -> tuple[int, ...]:
    """Returns ``ids`` in the order of a history, with repetitions. Other ids follow in ascending order."""
    wanted = set(ids)
    return (*(one for one in history if one in wanted), *sorted(wanted - set(history)))


class KnownSchemas(MemorySchemaRegistry):
    """A registry in memory with schemas under the ids of another registry."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        super().__init__()
        self._known = texts

    def schema_by_id(self, schema_id: int) -> str:
        """Returns the text of a schema; raises SchemaNotFoundError."""
        known = self._known.get(schema_id)
        return super().schema_by_id(schema_id) if known is None else known


def named_faults(records: pa.RecordBatch, faults: Iterable[Fault], protocol: str) -> Iterator[Fault]:
    """Rewords faults for a worker, which reads only Confluent's framing."""
    for fault in faults:
        elsewhere = record_ids_in_headers(records, fault.record)
        glue = (
            part for part in ("value", "key") if is_glue(records.column(part)[fault.record].as_py() or b"")
        )
        part = next(glue, None)
        if elsewhere is not None:
            yield fault._replace(error=FramingError(elsewhere))
        elif part is not None:
            yield fault._replace(error=FramingError(under_glue(part, protocol)))
        else:
            yield fault


def named_unplanned(records: pa.RecordBatch, found: Iterable[Unplanned]) -> Iterator[Unplanned]:
    """Yields records with a new or unusable id. If the real id is in a header, the fault reports this."""
    for one in found:
        elsewhere = record_ids_in_headers(records, one.record)
        yield one if elsewhere is None else replace(one, fault=FramingError(elsewhere))


def record_ids_in_headers(records: pa.RecordBatch, record: int) -> str | None:
    """Returns why a record's schema ids in headers cannot be read, or None if it has no such headers."""
    headers = records.column("headers")[record].as_py() if "headers" in records.schema.names else None
    return None if not headers else ids_in_headers((one["key"], one["value"]) for one in headers)


def under_glue(part: str, protocol: str) -> str:
    """Returns the message for a key or a value with AWS Glue's header."""
    return (
        f"The {part} has an AWS Glue schema registry header, but workers read only Confluent's header. "
        f"{UNDER_CONFLUENT[protocol]}"
    )


def folded_keys(shape: TableShape) -> frozenset[str] | None:
    """Returns the folded names of the table's key columns for ``ValueOptions``; None without a key."""
    return frozenset(shape.fold(name) for name in shape.keys) or None


def schema_id_of(part: bytes | None) -> int | None:
    """Returns the schema id in a Confluent header, or None without such a header. Ids start at 1."""
    if part is None or len(part) < HEADER_SIZE or part[0] != 0:
        return None
    return int.from_bytes(part[1:HEADER_SIZE], "big") or None


def schema_ids(column: pa.Array) -> npt.NDArray[np.int64]:
    """Returns the schema id in the Confluent header of each value; -1 without a header."""
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    found = np.full(len(column), _NO_ID, np.int64)
    framed = np.nonzero(lengths >= HEADER_SIZE)[0]
    if not len(framed):
        return found
    heads = pc.binary_slice(column.take(pa.array(framed)), 0, HEADER_SIZE)
    data = np.frombuffer(heads.cast(pa.binary(HEADER_SIZE)).buffers()[1], np.uint8)
    rows = data[heads.offset * HEADER_SIZE :][: len(framed) * HEADER_SIZE].reshape(-1, HEADER_SIZE)
    ids = rows[:, 1:].astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1], np.int64)
    found[framed] = np.where((rows[:, 0] == 0) & (ids > 0), ids, _NO_ID)
    return found
