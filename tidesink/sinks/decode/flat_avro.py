"""Builds decode plans of flat-avro tables from the schemas in the registry.

TiCDC names its subjects by TopicNameStrategy (tiflow c7b2588, ticdc b813e76). Records with AWS Glue's header
are bad records, because schemas are requested by the ids in Confluent's header.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import pyarrow as pa

from tidesink.codecs.batch import DecodedBatch, ValueOptions, Warn, rows_from_events
from tidesink.codecs.flat_avro.codec import FlatAvroCodec
from tidesink.codecs.flat_avro.schema import WriterRecord, parse_record
from tidesink.codecs.options import ChecksumMode, FlatAvroOptions
from tidesink.codecs.row_checksum import CHECKSUM, checksum_fault
from tidesink.errors import ChecksumError, ConfigError, SchemaMismatchError
from tidesink.events import ChangeEvent, Event, Message, TableId, WatermarkEvent, fold_name
from tidesink.sinks.decode.plans import (
    DEFAULT_SETTINGS,
    DecodePlan,
    KnownSchemas,
    PlanSettings,
    RegisteredSchemas,
    SubjectSchemas,
    folded_keys,
    in_order,
    named_faults,
    named_unplanned,
    schema_id_of,
)
from tidesink.sinks.decode.records import RecordedColumns, TableDecoder, Unplanned
from tidesink.sinks.decode.target_rows import DroppedById, TargetRows
from tidesink.typemap.table import AmbiguousTime, ZeroDate
from tidesink.typemap.target_schema import (
    IDENTITIES,
    TargetSchema,
    merged_in_order,
    shape_of,
    unread_columns,
)


@dataclass(frozen=True)
class FlatAvroDecoder(TableDecoder):
    """Decodes the flat-avro records of one table.

    Attributes:
        table: The table.
        schemas: The key and value schemas, by registry id.
        time_zone: Time zone in which TIMESTAMP texts are read.
        zero_date: Policy for impossible dates.
        checksum: Handling of rows that do not match their checksum.
        keys: Names of the key columns in lower case. If None, they are the columns of the records' keys.
        ambiguous_time: Policy for local times that occur twice.
        uses_headers: True if some records have their schema ids in headers.
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
        """Returns the records that cannot be decoded, because their schema id is new or cannot be used."""
        return tuple(named_unplanned(records, self.schemas.unplanned(records)))

    def schema_id(self, part: bytes | None) -> int | None:
        """Returns the schema id in the Confluent header of a key or a value."""
        return schema_id_of(part)

    def decode_batch(self, records: pa.RecordBatch) -> DecodedBatch:
        """Returns the events of the records, and the records that cannot be decoded."""
        if self._sums:
            batch = rows_from_events(records, self.decode, self.values, self.warn)
        else:
            batch = super().decode_batch(records)
        return replace(batch, faults=tuple(named_faults(records, batch.faults, "flat-avro")))

    @property
    def values(self) -> ValueOptions:
        """The policies for impossible dates and ambiguous times, the time zone, and the table's key."""
        return ValueOptions(self.zero_date, self.time_zone, self.keys, self.ambiguous_time)

    @property
    def recorded_columns(self) -> RecordedColumns:
        """Only rows without a column show that it was dropped, because no DDL is read."""
        return RecordedColumns("rows")

    @property
    def columnar_events(self) -> tuple[type, ...]:
        """The events, besides rows, that the columnar decoder decodes: watermarks."""
        return (WatermarkEvent,)

    @property
    def warn(self) -> Warn | None:
        """Function that returns the reason why a row does not match its checksum, or None if it matches.

        None if no rows are applied with such a warning.
        """
        warns = self._sums and self.checksum == "warn"
        return partial(checksum_fault, time_zone=self.time_zone) if warns else None

    @cached_property
    def _codec(self) -> FlatAvroCodec:
        return FlatAvroCodec(
            registry=KnownSchemas(self.schemas.texts),
            options=FlatAvroOptions(time_zone=self.time_zone),
            table_of_topic=lambda _topic: self.table,
        )

    @cached_property
    def _sums(self) -> bool:
        """True if rows are compared with their checksums: it is configured, and a schema has a checksum."""
        has = any(CHECKSUM in text for text in self.schemas.values.texts.values())
        return self.checksum != "off" and has

    def decode(self, message: Message) -> tuple[Event, ...]:
        """Decode one record with the row codec (the decoder of single records), and return its event.

        Raises:
            ChecksumError: The row does not match its checksum, and such rows are rejected.
            DecodeError: The record cannot be decoded.
        """
        events = self._codec.decode(message)
        for event in events if self._sums and self.checksum == "reject" else ():
            fault = isinstance(event, ChangeEvent) and checksum_fault(event, time_zone=self.time_zone)
            if fault:
                raise ChecksumError(fault, table=str(self.table))
        return events


def flat_avro_plan(
    table: TableId,
    schemas: SubjectSchemas,
    settings: PlanSettings = DEFAULT_SETTINGS,
    *,
    checksum: ChecksumMode = "off",
) -> DecodePlan:
    """Build the decode plan of a table from its writer schemas (the schemas with which records were written).

    Pass every known schema of the topic's subjects, not only those of a batch. If rows were written with a
    schema that lacks a column, the column gets its default if only later schemas have it. It gets null if an
    earlier schema had it, because it was dropped.

    Args:
        table: The table.
        schemas: The known schemas of the topic's subjects.
        settings: The settings of the plan. Checksums use their time zone too.
        checksum: Handling of rows that do not match their checksum: ``warn`` applies them with a reason in
            the column ``_reason``, ``reject`` makes them bad records.

    Raises:
        ConfigError: The table has no key, or ``settings.keys`` has a column that the table does not have.
        SchemaRefusedError: A column has two types in two schemas, and no type holds the values of both.
    """
    key_read, key_refused = _read_schemas(schemas.keys)
    value_read, value_refused = _read_schemas(schemas.values)
    named = _key_names(table, settings, key_read.values())
    if settings.keys is None:
        key_read, others = _of_other_keys(key_read, named)
        key_refused |= others
    used = in_order(schemas.history, value_read)
    shape = _shape(
        table,
        # A topic that has only deletes so far has only the key columns.
        [value_read[schema_id] for schema_id in dict.fromkeys(used)] or list(key_read.values()),
        named,
        settings,
    )
    usable = RegisteredSchemas.of(schemas, key_refused, value_refused)
    dropped = DroppedById.of(
        {number: record.column_names for number, record in value_read.items()},
        used,
        shape.fold,
        schemas.first_rows,
    )
    there = {shape.fold(name) for name in value_read[used[-1]].column_names} if used else None
    return DecodePlan(
        TargetRows(shape, dropped, unread=unread_columns(shape, settings.left_out)),
        FlatAvroDecoder(
            table,
            usable,
            shape.time_zone,
            shape.zero_date,
            checksum,
            folded_keys(shape),
            shape.ambiguous_time,
        ),
        gone=frozenset() if there is None else frozenset(shape.by_name) - there,
        logs=settings.logs,
    )


def lacks_checksums(value_schemas: Iterable[str]) -> bool:
    """Returns True if none of the value schemas has a checksum field; False if there are no schemas."""
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
    table: TableId, settings: PlanSettings, key_schemas: Iterable[WriterRecord]
) -> tuple[str, ...]:
    names = settings.known_keys
    for record in key_schemas:
        names = names or record.column_names
    if not (names or settings.logs):
        raise ConfigError(
            f"The records of {table} have no key, so it is unknown which row a change belongs to. "
            "Name its key columns under tables: keys, or set mode: append to keep its changes; "
            f"{IDENTITIES['flat-avro']}",
            table=str(table),
        )
    return names


def _of_other_keys(
    schemas: dict[int, WriterRecord], named: tuple[str, ...]
) -> tuple[dict[int, WriterRecord], dict[int, str]]:
    """Divide key schemas into those with exactly the key columns ``named``, and the others.

    Records with one of the others are bad records, because their rows cannot be merged with the table's rows.
    The second result has the reason for each of them, by registry id.
    """
    folded = {fold_name(name) for name in named}
    same, others = {}, {}
    for schema_id, record in schemas.items():
        columns = record.column_names
        if {fold_name(name) for name in columns} == folded:
            same[schema_id] = record
        else:
            others[schema_id] = (
                f"The record's key schema {schema_id} has the columns ({', '.join(columns)}), but the "
                f"table's key is ({', '.join(named)}). The key of the source table was changed. Name the "
                "key to use under tables: keys."
            )
    return same, others


def _shape(
    table: TableId, records: Sequence[WriterRecord], named: tuple[str, ...], settings: PlanSettings
) -> TargetSchema:
    folded = frozenset(fold_name(name) for name in named)
    shapes = []
    for record in records:
        own = (name for name in record.column_names if fold_name(name) in folded)
        schema = record.table_schema(table, own)
        shapes.append(
            shape_of(
                schema,
                keys=named,
                zero_date=settings.zero_date,
                time_zone=settings.time_zone,
                ambiguous_time=settings.ambiguous_time,
            )
        )
    if not shapes:
        raise ConfigError(
            f"{table} has no schema in the registry yet, so it cannot be read. Check that the "
            f"changefeed has sent a row.",
            table=str(table),
        )
    # A schema from before the base may have become known. It decides the first default of a column.
    return merged_in_order(shapes, settings.base, left_out=settings.left_out)
