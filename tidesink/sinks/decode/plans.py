"""Decode plans, and the writer schemas of records by registry id.

A decode plan has the schemas with which tasks decode a table's records. Tasks do not call the schema
registry. A task returns a record as *unplanned* if the plan does not contain the record's schema. The driver
then looks the schema up in the registry and runs the batch again with a new plan.
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
from tidesink.sinks.decode.filtering import RowFilterRule
from tidesink.sinks.decode.records import NO_RULES, EventRules, TableDecoder, Unplanned
from tidesink.sinks.decode.target_rows import TargetRows
from tidesink.sinks.laws.modes import log_shape
from tidesink.sinks.laws.schema_rows import FirstRows
from tidesink.typemap.table import AmbiguousTime, ZeroDate
from tidesink.typemap.target_schema import LeftOut, TargetSchema, needs_all

_NO_ID = -1
# The remedy for records with AWS Glue's header, by protocol.
UNDER_CONFLUENT: Final = {
    "flat-avro": (
        "Configure the changefeed with a schema-registry URL. Only tidesink decode and open_codec(glue=...) "
        "can read records with the AWS Glue header."
    ),
    "debezium-avro": (
        "Configure the connector with Confluent's or Apicurio's AvroConverter instead of AWS's, or the "
        "changefeed with a schema-registry URL. Records that were written before that cannot be read: in a "
        "new table's section under tables, set start to the time of the change."
    ),
}


@dataclass(frozen=True)
class PlanSettings:
    """The settings of a table's decode plan that every protocol has.

    Attributes:
        base: The target's current schema. The plan keeps its columns and adds new ones.
        keys: Names of the key columns from the config. If None, the records or the source table decide.
        zero_date: Policy for impossible dates.
        ambiguous_time: Policy for local times that occur twice. Debezium's protocols do not use it.
        time_zone: Time zone in which local times are read.
        logs: True if the table keeps every change (``mode: append``). Then it needs no key.
        left_out: Returns True for a column that the target does not have.
    """

    base: TargetSchema | None = None
    keys: tuple[str, ...] | None = None
    zero_date: ZeroDate = "null"
    ambiguous_time: AmbiguousTime = "first"
    time_zone: str = "UTC"
    logs: bool = False
    left_out: LeftOut = needs_all

    @property
    def known_keys(self) -> tuple[str, ...]:
        """Names of the key columns from the config, or else of the target; empty if neither names any."""
        return self.keys or (self.base.keys if self.base else ())


DEFAULT_SETTINGS: Final = PlanSettings()


@dataclass(frozen=True)
class DecodePlan:
    """The conversion of a table's records into rows of the target, based on the known writer schemas.

    Attributes:
        rows: Converts rows of every known writer schema into one set of columns (``TargetSchema``): the
            columns with which the table began, and those of all these schemas.
        decoder: Decodes the table's records.
        keeps_values: True if a row may omit values, so that the target keeps its stored values. This depends
            only on the protocol and the config. So a conflicting setting is rejected before any record is
            read.
        gone: Columns of ``shape``, in lower case, that the source no longer has.
        logs: True if every change becomes a row of a change log (``mode: append``).
        rules: Conditions that each event of the batch must meet. Otherwise it is a bad record.
        row_filter: The table's filter, or None. A row that does not match it is a delete.
        ignores_nulls: True if a null is treated like a value that was not sent: the stored value is kept.
        warnings: Warnings about columns of which the topic's records do not show all properties.
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
    def shape(self) -> TargetSchema:
        """The table's columns in the target, without the columns that its mode adds."""
        return self.rows.target_shape

    @property
    def packed_shape(self) -> TargetSchema:
        """The columns of the rows that tasks return, including the additional columns of a change log."""
        return log_shape(self.shape) if self.logs else self.shape

    def with_rows_in(self, shape: TargetSchema) -> DecodePlan:
        """Returns a copy of the plan in which the columns have the properties that they have in ``shape``.

        ``shape`` must have the same columns as the plan.
        """
        return replace(self, rows=replace(self.rows, shape=shape))

    def for_batch(self, number: int, rules: EventRules, *, marks_deletes: bool) -> DecodePlan:
        """Returns a copy of the plan for the batch with the number ``number``.

        ``rules``: the conditions that each event of the batch must meet. ``marks_deletes``: True if a deleted
        row stays in the target and is marked as deleted.
        """
        rows = self.rows
        if rows.metadata is not None:
            metadata = replace(rows.metadata, batch=number, marks_deletes=marks_deletes)
            rows = replace(rows, metadata=metadata)
        return replace(self, rows=rows, rules=rules)


@dataclass(frozen=True)
class SubjectSchemas:
    """The known schemas of a topic's two subjects, from which a decode plan is built.

    Attributes:
        keys: Texts of the key schemas by registry id.
        values: Texts of the value schemas by registry id.
        history: Registry ids of value schemas in the order in which they were in use. A schema that came back
            into use is listed again. Schemas whose ids are not listed follow in ascending order of their ids.
        first_rows: The first known rows of each value schema, by registry id.
        unknown: Ids that the registry does not have, with reasons. Their records are bad records.
    """

    keys: Mapping[int, str]
    values: Mapping[int, str]
    history: Sequence[int] = ()
    first_rows: Mapping[int, FirstRows] = field(default_factory=dict)
    unknown: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SideSchemas:
    """The writer schemas of a topic's keys, or of its values, by registry id.

    ``texts``: texts of the schemas that can be used. ``refused``: reasons why a schema cannot be used.
    ``unknown``: reasons why an id was not found in the registry.
    """

    texts: Mapping[int, str]
    refused: Mapping[int, str] = field(default_factory=dict)
    unknown: Mapping[int, str] = field(default_factory=dict)

    def fault(self, schema_id: int, part: str) -> TidesinkError | None:
        """Returns the error for records with this schema id, if the schema is refused or not in the registry.

        Returns None if the id was not looked up yet.
        """
        if schema_id in self.refused:
            return SchemaMismatchError(f"{part}: {self.refused[schema_id]}")
        if schema_id in self.unknown:
            return SchemaNotFoundError(f"{part}: {self.unknown[schema_id]}")
        return None


@dataclass(frozen=True)
class RegisteredSchemas:
    """The writer schemas of a topic's keys and values."""

    keys: SideSchemas
    values: SideSchemas

    @classmethod
    def of(
        cls, schemas: SubjectSchemas, key_refused: Mapping[int, str], value_refused: Mapping[int, str]
    ) -> RegisteredSchemas:
        """Divide the known schemas of a topic's subjects into usable and refused ones.

        ``key_refused``, ``value_refused``: reasons why a schema cannot be used, by registry id.
        """

        def side(texts: Mapping[int, str], refused: Mapping[int, str]) -> SideSchemas:
            usable = {schema_id: text for schema_id, text in texts.items() if schema_id not in refused}
            return SideSchemas(usable, dict(refused), dict(schemas.unknown))

        return cls(side(schemas.keys, key_refused), side(schemas.values, value_refused))

    def unplanned(self, records: pa.RecordBatch, *, first: str = "key") -> Iterator[Unplanned]:
        """Yields the records that cannot be decoded, because the schema id in their key or value belongs to
        none of the usable schemas.

        ``first``: the part of the record (``key`` or ``value``) whose error is reported if both have one.
        """
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
            fault = next((error for error in faults if error is not None), None)
            yield Unplanned(record, "a schema id is new", fault)

    @property
    def texts(self) -> dict[int, str]:
        """The texts of all usable schemas of keys and values, by id."""
        return {**self.keys.texts, **self.values.texts}


def in_order(history: Sequence[int], ids: Iterable[int]) -> tuple[int, ...]:
    """Returns the schema ids ``ids`` in the order in which their schemas were in use.

    ``history``: the known ids in that order. An id that occurs in it several times is repeated in the result.
    Ids that do not occur in it follow at the end, in ascending order.
    """
    wanted = set(ids)
    return (*(schema_id for schema_id in history if schema_id in wanted), *sorted(wanted - set(history)))


class KnownSchemas(MemorySchemaRegistry):
    """A schema registry in memory, for codecs in tasks. It returns the schemas that the driver has read from
    the real registry, by the same ids.
    """

    def __init__(self, texts: Mapping[int, str]) -> None:
        super().__init__()
        self._known = texts

    def schema_by_id(self, schema_id: int) -> str:
        """Returns the text of the schema with this registry id.

        Raises:
            SchemaNotFoundError: The id is not known.
        """
        text = self._known.get(schema_id)
        return super().schema_by_id(schema_id) if text is None else text


def named_faults(records: pa.RecordBatch, faults: Iterable[Fault], protocol: str) -> Iterator[Fault]:
    """Yields the decoding errors of records. An error that is caused by an unsupported schema header gets a
    message that explains this.

    Workers read a schema id only from Confluent's header in front of a key or a value. They do not read ids
    from record headers or from AWS Glue's header.
    """
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


def named_unplanned(records: pa.RecordBatch, unplanned: Iterable[Unplanned]) -> Iterator[Unplanned]:
    """Yields the given unplanned records, which have a schema or a column that the decode plan lacks.

    A record that has its schema ids in Kafka headers gets an error, because workers do not read ids there.
    """
    for unplanned_record in unplanned:
        elsewhere = record_ids_in_headers(records, unplanned_record.record)
        yield (
            unplanned_record
            if elsewhere is None
            else replace(unplanned_record, fault=FramingError(elsewhere))
        )


def record_ids_in_headers(records: pa.RecordBatch, record: int) -> str | None:
    """Returns the error message for a record with schema ids in its Kafka headers, or None without them."""
    headers = records.column("headers")[record].as_py() if "headers" in records.schema.names else None
    return None if not headers else ids_in_headers((header["key"], header["value"]) for header in headers)


def under_glue(part: str, protocol: str) -> str:
    """Returns the error message for a key or a value (``part``) with AWS Glue's header."""
    return (
        f"The {part} has an AWS Glue schema registry header, but workers read only Confluent's header. "
        f"{UNDER_CONFLUENT[protocol]}"
    )


def folded_keys(shape: TargetSchema) -> frozenset[str] | None:
    """Returns the case-folded names of the table's key columns, or None if the table has no key."""
    return frozenset(shape.fold(name) for name in shape.keys) or None


def schema_id_of(part: bytes | None) -> int | None:
    """Returns the schema id in the Confluent header of a key or a value, or None without this header.

    Ids start at 1.
    """
    if part is None or len(part) < HEADER_SIZE or part[0] != 0:
        return None
    return int.from_bytes(part[1:HEADER_SIZE], "big") or None


def schema_ids(column: pa.Array) -> npt.NDArray[np.int64]:
    """Returns, for each key or value in a column, the schema id in its Confluent header, or -1 without this
    header.
    """
    lengths = pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    header_ids = np.full(len(column), _NO_ID, np.int64)
    framed = np.nonzero(lengths >= HEADER_SIZE)[0]
    if not len(framed):
        return header_ids
    heads = pc.binary_slice(column.take(pa.array(framed)), 0, HEADER_SIZE)
    data = np.frombuffer(heads.cast(pa.binary(HEADER_SIZE)).buffers()[1], np.uint8)
    rows = data[heads.offset * HEADER_SIZE :][: len(framed) * HEADER_SIZE].reshape(-1, HEADER_SIZE)
    ids = rows[:, 1:].astype(np.int64) @ np.array([1 << 24, 1 << 16, 1 << 8, 1], np.int64)
    header_ids[framed] = np.where((rows[:, 0] == 0) & (ids > 0), ids, _NO_ID)
    return header_ids
