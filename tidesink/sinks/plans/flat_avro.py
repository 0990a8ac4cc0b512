"""Plans of flat-avro tables: from the texts of the schemas in the registry.

TiCDC's subjects follow TopicNameStrategy (tiflow c7b2588, ticdc b813e76). Records under AWS Glue's header are
bad records: the schemas are asked for by Confluent's ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

import pyarrow as pa

from tidesink.codecs.base import ChecksumMode, CodecOptions
from tidesink.codecs.batch import ChangeTable, DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.flat_avro.schema import WriterRecord, parse_record
from tidesink.codecs.row_checksum import CHECKSUM, checksum_fault
from tidesink.errors import ChecksumError, ConfigError, SchemaMismatchError
from tidesink.events import ChangeEvent, Event, Message, TableId, WatermarkEvent, fold_name
from tidesink.sinks.batch.decoders import (
    DecodePlan,
    KnownSchemas,
    RegisteredSchemas,
    SideSchemas,
    folded_keys,
    in_order,
    named_faults,
    named_unplanned,
    schema_id_of,
)
from tidesink.sinks.batch.records import TableDecoder, Unplanned
from tidesink.sinks.batch.schema_rows import FirstRows
from tidesink.sinks.batch.target_rows import DroppedById, TargetRows
from tidesink.typemap.table import AmbiguousTime, ZeroDate
from tidesink.typemap.target_schema import (
    IDENTITIES,
    LeftOut,
    TableShape,
    merged_in_order,
    needs_all,
    shape_of,
    unread_columns,
)


@dataclass(frozen=True)
class FlatAvroDecoder(TableDecoder):
    """Decodes the flat-avro records of one table.

    ``uses_headers``: some records have their schema ids in headers, which only a header shows. ``checksum``:
    what is done about a row that is not what its checksum says. ``keys`` and ``ambiguous_time``: as
    ``ValueOptions``.
    """

    table: TableId
    schemas: RegisteredSchemas
    time_zone: str
    zero_date: ZeroDate
    checksum: ChecksumMode = "off"
    keys: frozenset[str] | None = None
    ambiguous_time: AmbiguousTime = "first"
    uses_headers: bool = False

    def unplanned(self, records: pa.RecordBatch) -> Sequence[Unplanned]:
        """Records with an id that is new or unusable."""
        return tuple(named_unplanned(records, self.schemas.unplanned(records)))

    def schema_id(self, part: bytes | None) -> int | None:
        """The id in the Confluent header."""
        return schema_id_of(part)

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        """The records' events."""
        if self._sums:
            found = rows_from_events(records, self.decode, self.values)
        else:
            found = super().decode_batch(records)
        return replace(found, faults=tuple(named_faults(records, found.faults, "flat-avro")))

    def warnings(self, changes: ChangeTable) -> pa.Array | None:
        """Why rows are not what their checksums say, where they are applied all the same."""
        if not self._doubts:
            return None
        places = (changes.rows[name].to_pylist() for name in ("topic", "partition", "offset"))
        reasons = [self._doubts.pop(place, None) for place in zip(*places, strict=True)]
        return pa.array(reasons, pa.string())

    @property
    def values(self) -> ValueOptions:
        """The policies for times, the zone, and the table's key."""
        return ValueOptions(self.zero_date, self.time_zone, self.keys, self.ambiguous_time)

    @property
    def rows_tell_dropped(self) -> bool:
        """Whether only a later row shows that a column was dropped: no DDL is read."""
        return True

    @property
    def columnar_events(self) -> tuple[type, ...]:
        """Watermarks."""
        return (WatermarkEvent,)

    @property
    def warns(self) -> bool:
        """Whether checksums are compared."""
        return self._sums

    @cached_property
    def _codec(self) -> FlatAvroCodec:
        return FlatAvroCodec(
            registry=KnownSchemas(self.schemas.texts),
            options=CodecOptions(time_zone=self.time_zone),
            table_of_topic=lambda _topic: self.table,
        )

    @cached_property
    def _sums(self) -> bool:
        """Whether rows are held against their checksums: of some schema they have one."""
        has = any(CHECKSUM in text for text in self.schemas.values.texts.values())
        return self.checksum != "off" and has

    @cached_property
    def _doubts(self) -> dict[tuple[str, int, int], str]:
        return {}

    def decode(self, message: Message) -> tuple[Event, ...]:
        """One record's event; its row is held against its checksum where that is asked."""
        events = self._codec.decode(message)
        for event in events if self._sums else ():
            fault = isinstance(event, ChangeEvent) and checksum_fault(event, time_zone=self.time_zone)
            if fault and self.checksum == "reject":
                raise ChecksumError(fault, table=str(self.table))
            if fault:
                self._doubts[message.topic, message.partition, message.offset] = fault
        return events


def flat_avro_plan(  # noqa: PLR0913  (all that a plan rests on)
    table: TableId,
    *,
    key_schemas: Mapping[int, str],
    value_schemas: Mapping[int, str],
    history: Sequence[int] = (),
    first_rows: Mapping[int, FirstRows] = MappingProxyType({}),
    unknown_ids: Mapping[int, str] = MappingProxyType({}),
    base: TableShape | None = None,
    keys: tuple[str, ...] | None = None,
    zero_date: ZeroDate = "null",
    ambiguous_time: AmbiguousTime = "first",
    time_zone: str = "UTC",
    checksum: ChecksumMode = "off",
    logs: bool = False,
    left_out: LeftOut = needs_all,
) -> DecodePlan:
    """A plan for a table from the texts of its writer schemas, by registry id.

    Give every schema of the subjects that is known, not the batch's alone: a column that a writer lacks
    is filled with its default where only later schemas have it, and is null where an earlier one had it,
    since it was dropped. ``history``: the ids in the order in which the schemas were in use; a schema that
    came back is there again. Ids that it lacks follow in their own order. ``first_rows``: by id, the first
    rows known. ``base`` is the shape the target has; it is only added to.
    ``keys`` override the columns of the key record. ``unknown_ids``: ids that were looked up in vain, each
    with the reason; their records are bad. ``checksum``: what is done about a row that is not what its
    checksum says: ``warn`` gives it a ``_reason``, ``reject`` makes it bad; TIMESTAMP texts are then taken
    to be in ``time_zone``. ``logs``: see ``DecodePlan``; a table needs no key then. ``left_out``: see
    ``merge_shape``.

    Raises:
        ConfigError: the table has no key, or ``keys`` names a column it does not have.
        SchemaRefusedError: two schemas have types for a column that cannot be one.
    """
    key_read, key_refused = _read_schemas(key_schemas)
    value_read, value_refused = _read_schemas(value_schemas)
    named = _key_names(table, keys, base, key_read.values(), needed=not logs)
    if keys is None:
        key_read, others = _of_other_keys(key_read, named)
        key_refused |= others
    used = in_order(history, value_read)
    shape = _shape(
        table,
        # A topic that holds deletes alone tells of the key columns and nothing else.
        [value_read[one] for one in dict.fromkeys(used)] or list(key_read.values()),
        named,
        base=base,
        zero_date=zero_date,
        ambiguous_time=ambiguous_time,
        time_zone=time_zone,
        left_out=left_out,
    )
    schemas = RegisteredSchemas(
        SideSchemas({number: key_schemas[number] for number in key_read}, key_refused, unknown_ids),
        SideSchemas({number: value_schemas[number] for number in value_read}, value_refused, unknown_ids),
    )
    dropped = DroppedById.of(
        {number: one.column_names for number, one in value_read.items()}, used, shape.fold, first_rows
    )
    there = {shape.fold(name) for name in value_read[used[-1]].column_names} if used else None
    return DecodePlan(
        TargetRows(shape, dropped, unread=unread_columns(shape, left_out)),
        FlatAvroDecoder(
            table,
            schemas,
            shape.time_zone,
            shape.zero_date,
            checksum,
            folded_keys(shape),
            shape.ambiguous_time,
        ),
        gone=frozenset() if there is None else frozenset(shape.by_name) - there,
        logs=logs,
    )


def lacks_checksums(value_schemas: Iterable[str]) -> bool:
    """Whether there are schemas and none has a checksum."""
    texts = list(value_schemas)
    return bool(texts) and not any(CHECKSUM in text for text in texts)


def _read_schemas(texts: Mapping[int, str]) -> tuple[dict[int, WriterRecord], dict[int, str]]:
    read, refused = {}, {}
    for schema_id, text in sorted(texts.items()):
        try:
            read[schema_id] = parse_record(text)
        except SchemaMismatchError as error:
            refused[schema_id] = error.message
    return read, refused


def _key_names(
    table: TableId,
    keys: tuple[str, ...] | None,
    base: TableShape | None,
    key_schemas: Iterable[WriterRecord],
    *,
    needed: bool,
) -> tuple[str, ...]:
    found = keys or (base.keys if base else None)
    for record in key_schemas:
        found = found or record.column_names
    if not found and needed:
        raise ConfigError(
            f"{table} has no key record in its topic, so nothing says which row a change is about: "
            "name its key columns under tables: keys, or set mode: append to keep its changes; "
            f"{IDENTITIES['flat-avro']}",
            table=str(table),
        )
    return found or ()


def _of_other_keys(
    schemas: dict[int, WriterRecord], named: tuple[str, ...]
) -> tuple[dict[int, WriterRecord], dict[int, str]]:
    """Key schemas of the key ``named``, and of the others why not: rows of one key are none of another."""
    folded = {fold_name(name) for name in named}
    same, others = {}, {}
    for schema_id, record in schemas.items():
        columns = record.column_names
        if {fold_name(name) for name in columns} == folded:
            same[schema_id] = record
        else:
            others[schema_id] = (
                f"its schema {schema_id} has the columns ({', '.join(columns)}), and the table's key is "
                f"({', '.join(named)}): the source's key was changed. Name the key to go by under "
                "tables: keys"
            )
    return same, others


def _shape(  # noqa: PLR0913  (all that a shape rests on)
    table: TableId,
    records: Sequence[WriterRecord],
    named: tuple[str, ...],
    *,
    base: TableShape | None,
    zero_date: ZeroDate,
    ambiguous_time: AmbiguousTime,
    time_zone: str,
    left_out: LeftOut,
) -> TableShape:
    folded = frozenset(fold_name(name) for name in named)
    shapes = []
    for record in records:
        own = (name for name in record.column_names if fold_name(name) in folded)
        schema = record.table_schema(table, own)
        shapes.append(
            shape_of(
                schema, keys=named, zero_date=zero_date, time_zone=time_zone, ambiguous_time=ambiguous_time
            )
        )
    if not shapes:
        raise ConfigError(f"{table} has no schema yet: nothing can be planned", table=str(table))
    # A schema older than all that made the base may be known by now: a column's first default is its.
    return merged_in_order(shapes, base, left_out=left_out)
