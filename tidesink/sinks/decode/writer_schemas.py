"""The writer schemas of a table: the schemas with which its records were written.

They come from the registry (flat-avro and debezium-avro) or from the records (debezium-json).

For the Avro codecs, all versions of the topic's two subjects are requested first, so that the history of each
column is known. If a record has a schema id that no version has, the id is requested separately. Subjects
are named by TopicNameStrategy, which is the default of Confluent's and Apicurio's converters and of TiCDC
(b813e76).

The first decode plan of a debezium-json topic is built from the first record with a row. If a task decodes a
record with another schema, it reports the schema (a writer). Column types that are neither in a definition
nor in a schema come from the source database. If the database does not have the table, the table waits, or
such columns become text (``source.debezium.untyped-columns``).
"""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from tidesink.codecs.debezium.inference import UNTYPED, first_row
from tidesink.codecs.framing import HEADER_SIZE
from tidesink.codecs.options import DebeziumOptions
from tidesink.errors import (
    ConfigError,
    DecodeError,
    RegistryError,
    SchemaNotFoundError,
    TidesinkError,
    UnusableSchemaError,
)
from tidesink.events import ChangeEvent, Message, TableId
from tidesink.schema_registry import SchemaReader, SubjectPart, subject
from tidesink.schema_registry.base import ContextReader
from tidesink.sinks.decode.database_types import (
    AskedIdentity,
    database_connector,
    replica_identity,
)
from tidesink.sinks.decode.debezium_avro import DebeziumAvroDecoder, debezium_avro_plan, names_no_row
from tidesink.sinks.decode.debezium_changes import DatabaseFacts
from tidesink.sinks.decode.debezium_json import (
    JsonWriter,
    Writers,
    debezium_json_plan,
    first_writer,
    writer_of,
)
from tidesink.sinks.decode.flat_avro import FlatAvroDecoder, flat_avro_plan, lacks_checksums
from tidesink.sinks.decode.open import LoneDecoding
from tidesink.sinks.decode.parts import DecodingParts, Retry
from tidesink.sinks.decode.plans import (
    UNDER_CONFLUENT,
    DecodePlan,
    SubjectSchemas,
    record_ids_in_headers,
    schema_id_of,
)
from tidesink.sinks.decode.record_types import RecordTypes, newest_typed
from tidesink.sinks.decode.schema_history import SCHEMA_USE, SchemaUse, StoredUse
from tidesink.sinks.decode.schema_source import Missed, TypesFrom, declared_table
from tidesink.sinks.decode.target_rows import DroppedById
from tidesink.sinks.kafka.offsets import (
    NO_STARTS,
    OffsetRange,
    Starts,
    TopicOffsets,
    growing_parts,
    plan_ranges,
)
from tidesink.sinks.laws.counts import BadRecord, BatchSummary, UnplannedRecord
from tidesink.sinks.laws.schema_rows import FirstRows, RowPosition, RowSpan
from tidesink.sinks.state.documents import Document
from tidesink.typemap.projection import named_columns

if TYPE_CHECKING:
    from tidesink.sinks.kafka.topic_reader import TopicReader
    from tidesink.source_database.base import ReplicaIdentity


_log = structlog.get_logger("tidesink.worker")

# First bytes of AWS Glue's header: 03, then 00 or 05, which shows if the payload is compressed.
_GLUE_HEADS: Final = (b"\3\0", b"\3\5")
# Number of records at the end of each partition that are read to find the schema in use.
_LAST_RECORDS: Final = 100
# Number of records that are read for their schema ids if the registry has no subject of the topic.
_PEEKED_RECORDS: Final = 10_000


class RegisteredDecoding(LoneDecoding):
    """Base class: writer schemas from the registry for a table with its own topic, and its decode plan."""

    def __init__(
        self,
        parts: DecodingParts,
        topic: str,
        table: TableId,
        *,
        schemas: WriterSchemas,
    ) -> None:
        super().__init__(parts, topic, table)
        self._schemas = schemas
        self._use = SchemaUse[int]()
        # The order of the schemas at the last check, and the facts from which the plan was built.
        self._order: Any = None
        self._planned_by: Any = None
        # True if some records have their schema ids in headers.
        self._uses_headers = False
        # Unknown schema ids from the bytes of records that have no ids in headers. None: the bytes have no id
        # either.
        self._without_headers: set[int | None] = set()
        # The end offsets up to which last records were read to find the schema in use.
        self._looked_to: Mapping[int, int] = {}

    @abstractmethod
    def _planned(self) -> DecodePlan:
        """Build a decode plan from all known schemas. It keeps the last plan's columns and adds new ones."""

    @abstractmethod
    def _found_subjects(self) -> bool:
        """Returns True if a decode plan can be built from the schemas in the topic's subjects."""

    def prepare(self, topic_offsets: TopicOffsets, starts: Starts = NO_STARTS) -> None:
        """Read the topic's subjects from the registry, and build the decode plan.

        If the registry does not have the subjects, the schema ids in the topic's first records are requested.

        If the setting ``start`` skips records of the topic, only schemas of records from the start on are
        used, because other versions may belong to skipped records. If there are no such records yet, the
        newest version of each subject is used.
        """
        self._starts = starts
        if starts:
            self._schemas.takes_all = False
            self._schemas.look_up(self._peeked_ids(self._of_table(topic_offsets)))
            self._schemas.look_up(self._last_ids(topic_offsets))
            if not self._found_subjects():
                self._schemas.take_newest()
        else:
            self._schemas.read_subjects()
            if not self._found_subjects():
                self._schemas.look_up(self._peeked_ids(topic_offsets))
        self._make()
        if self._can_return:
            self._use = self._stored_use(topic_offsets)
            self._look_at_ends(topic_offsets)
            self._order = self._newest_order
            self._make()

    def catch_up(self, ranges: Sequence[OffsetRange] | None, topic_offsets: TopicOffsets) -> None:
        """Find the schema in use before rows of a snapshot are written, which are newer than the topic."""
        if ranges is None and self._can_return and self._look_at_ends(topic_offsets):
            self._use_changed(topic_offsets)

    @property
    def _subject_schemas(self) -> SubjectSchemas:
        """The known schemas of the topic's subjects, for the next decode plan."""
        texts, unknown = self._schemas.texts, self._schemas.unknown
        return SubjectSchemas(texts["key"], texts["value"], self._history, self._first_rows, unknown)

    @property
    def _history(self) -> tuple[int, ...]:
        """Registry ids of the value schemas, in the order in which the schemas were in use."""
        versions = self._schemas.versions("value")
        newest = (self._use.newest(versions),) if versions else ()
        return versions if newest == versions[-1:] else versions + newest

    @property
    def _can_return(self) -> bool:
        """True if rows get other values when an earlier schema comes back into use.

        These are rows of schemas that lack a column.
        """
        dropped = self._plan.rows.dropped if self._plan else None
        return isinstance(dropped, DroppedById) and dropped.can_return

    @property
    def _first_rows(self) -> dict[int, FirstRows]:
        """The first known rows of each value schema, by registry id."""
        return self._use.first_rows_in(self._schemas.versions("value"))

    @property
    def _newest_order(self) -> Any:
        """All facts that decide the order of the newest schemas, to detect changes of the order.

        When this is read, the rows of older schemas are forgotten.
        """
        versions = self._schemas.versions("value")
        self._use.forget_old(versions)
        return self._use.order, self._use.started_again(versions)

    def _look_at_ends(self, topic_offsets: TopicOffsets) -> bool:
        """Record the schemas of the last rows in each partition.

        Returns True if the order of the schemas may have changed.
        """
        plan, changed = self.columns(), False
        for message in self._parts.reader.messages_here(
            last_records(self._topic, self._of_table(topic_offsets), self._looked_to, most=_LAST_RECORDS)
        ):
            schema_id = schema_id_of(message.value)
            if schema_id is not None and schema_id in self._schemas.texts["value"]:
                row = RowPosition(message.offset, _source_of(plan, message), message.timestamp)
                changed = self._use.saw(schema_id, message.partition, RowSpan.of(row)) or changed
        self._looked_to = {number: offsets.latest for number, offsets in topic_offsets.partitions.items()}
        return changed

    def _met_rows(self, summary: BatchSummary, topic_offsets: TopicOffsets) -> bool:
        """Record the first and last row of each schema in a batch.

        Returns True if this changed the order of the schemas, and a new decode plan was built that may give
        other values to rows of the batch.
        """
        changed = [
            self._use.saw(schema_id, topic_partition.partition, rows)
            for topic_partition, partition_summary in summary.places.items()
            for schema_id, rows in partition_summary.writers.items()
        ]
        if not (any(changed) and self._can_return):
            return False
        return self._use_changed(topic_offsets)

    @property
    def _basis(self) -> Any:
        """Facts that decide the value of a column in rows that lack it. If they change, the plan changes.

        Facts about the rows of a batch itself are not included, because its tasks know them.
        """
        first_rows = self._first_rows.items()
        return self._history, {
            schema_id: (rows.source, rows.are_comparable) for schema_id, rows in first_rows
        }

    def _make(self) -> None:
        plan = self._planned()
        if self._uses_headers:
            assert isinstance(plan.decoder, FlatAvroDecoder | DebeziumAvroDecoder)  # noqa: S101  (as planned)
            plan = replace(plan, decoder=replace(plan.decoder, uses_headers=True))
        self._plan, self._planned_by = plan, self._basis

    def _use_changed(self, topic_offsets: TopicOffsets) -> bool:
        """If the order of the schemas changed, build a new decode plan and store the order.

        Returns True if the new plan may give other values to rows.
        """
        order = self._newest_order
        if order == self._order:
            return False
        self._order, before = order, self._planned_by
        self._make()
        stored = StoredUse(topic_offsets.topic_id, self._use.stored)
        self._parts.noting(
            self._table,
            lambda: self._use_document.save(stored),
            unless="which schema is in use is not stored",
        )
        return bool(self._planned_by != before)

    def _stored_use(self, topic_offsets: TopicOffsets) -> SchemaUse[int]:
        """Load the order in which schemas were in use, which an earlier run of the worker has stored.

        The result is empty if the topic was since deleted and created again.
        """
        stored = self._parts.noting(
            self._table,
            self._use_document.load,
            unless="which schema was in use is not known",
        )
        if stored is None or stored.topic_id != topic_offsets.topic_id:
            return SchemaUse()
        return SchemaUse.restored(stored.rows)

    @property
    def _use_document(self) -> Document[StoredUse]:
        return SCHEMA_USE.of(self._parts.store, self._parts.config.pipeline, self._topic)

    def _last_ids(self, topic_offsets: TopicOffsets) -> Ids:
        """Returns the schema ids in the last records of each partition, without those before the start."""
        ids: dict[SubjectPart, set[int]] = {part: set() for part in PARTS}
        parts = last_records(self._topic, self._of_table(topic_offsets), {}, most=_LAST_RECORDS)
        for message in self._parts.reader.messages_here(parts):
            found_ids = {"key": schema_id_of(message.key), "value": schema_id_of(message.value)}
            for part in PARTS:
                if (schema_id := found_ids[part]) is not None:
                    ids[part].add(schema_id)
        return ids

    def _peeked_ids(self, offsets: TopicOffsets) -> Ids:
        """Returns the schema ids in the topic's first records.

        Raises:
            ConfigError: No record has Confluent's header: they have AWS Glue's header, or have their schema
                ids in Kafka headers.
        """
        heads, elsewhere = peeked_heads(self._parts.reader, offsets)
        ids: Ids = {part: _ids(heads[part]) for part in PARTS}
        under_glue = any(head.startswith(_GLUE_HEADS) for part in PARTS for head in heads[part])
        if under_glue and not any(ids.values()):
            raise ConfigError(
                f"The records of topic {offsets.topic} have an AWS Glue schema registry header, but workers "
                f"read only Confluent's header. {UNDER_CONFLUENT[self._parts.config.source.protocol]}",
                table=str(self._table),
            )
        if elsewhere is not None and not any(ids.values()):
            raise ConfigError(
                f"The records of topic {offsets.topic} cannot be read: {elsewhere}.", table=str(self._table)
            )
        return ids

    def learn(self, missed: Missed) -> bool:
        """Look up the schema ids in a batch that the decode plan does not have, and build a new plan.

        Returns False if no new plan was needed. If the batch has bad records, ids that the registry did not
        have are requested again.
        """
        summary = missed.summary
        ids: Ids = {"key": summary.unplanned.key_ids, "value": summary.unplanned.value_ids}
        again, lacks = self._met_rows(summary, missed.found), self._schemas.lacks(ids)
        if not self._uses_headers and self._has_ids_in_headers(summary, lacks=lacks):
            # In this case, numbers in the bytes are not ids, so they are not requested.
            self._uses_headers = True
        elif lacks:
            self._schemas.look_up(ids)
        elif again:
            return True  # ``_met_rows`` has built a new plan
        elif not (summary.counts.bad and self._schemas.look_again()):
            return False
        self._make()
        return True

    def _has_ids_in_headers(self, summary: BatchSummary, *, lacks: bool) -> bool:
        """Returns True if a record of a batch has its schema id in a header.

        Batches are read without headers, so one record is read again with its headers: a record with a schema
        id that was not requested yet (``lacks``), otherwise the first bad record whose bytes have an unknown
        id or no id. Each unknown id is checked only once, and so is the case of no id, because a table may
        have such bad records in every batch. If a producer begins later to send ids in headers, its records
        are bad records. Their error mentions the headers only after the worker's next start.
        """
        texts = self._schemas.texts
        known_ids = texts["key"].keys() | texts["value"].keys() | self._without_headers
        odd = [record for record in summary.bad_records if record.schema_id not in known_ids]
        records: Sequence[UnplannedRecord | BadRecord] = summary.unplanned.records if lacks else odd
        if not records:
            return False
        topic_partition, offset = records[0].place, records[0].offset
        part = OffsetRange(topic_partition.topic, topic_partition.partition, offset, offset + 1)
        if any(
            record_ids_in_headers(batch, index) is not None
            for batch in self._parts.reader.read_here([part])
            for index in range(batch.num_rows)
        ):
            return True
        if not lacks:
            self._without_headers.add(odd[0].schema_id)
        return False


def _source_of(plan: DecodePlan, message: Message) -> tuple[int, ...] | None:
    """Returns the source position of a record's row, or None if it has none or cannot be decoded."""
    try:
        events = plan.decoder.decode(message)
    except TidesinkError:
        return None
    return next((event.position.source for event in events if isinstance(event, ChangeEvent)), None)


def peeked_heads(
    reader: TopicReader, topic_offsets: TopicOffsets
) -> tuple[dict[SubjectPart, frozenset[bytes]], str | None]:
    """Returns the distinct first five bytes (Confluent's header) of keys and values in the first records.

    Records that have their schema ids in Kafka headers are left out. The second result is the reason why
    these records cannot be read, or None if there are no such records.
    """
    everything = [
        OffsetRange(topic_offsets.topic, n, *offsets) for n, offsets in topic_offsets.partitions.items()
    ]
    heads: dict[SubjectPart, set[bytes]] = {part: set() for part in PARTS}
    elsewhere = None
    for batch in reader.read_here(plan_ranges(everything, max_records=_PEEKED_RECORDS)):
        reasons = [record_ids_in_headers(batch, index) for index in range(batch.num_rows)]
        elsewhere = next((reason for reason in reasons if reason is not None), elsewhere)
        framed = batch.filter(pa.array([reason is None for reason in reasons], pa.bool_()))
        for part, part_heads in heads.items():
            part_heads.update(
                pc.unique(pc.binary_slice(framed.column(part), 0, HEADER_SIZE).drop_null()).to_pylist()
            )
    return {part: frozenset(part_heads) for part, part_heads in heads.items()}, elsewhere


def _ids(heads: Iterable[bytes]) -> tuple[int, ...]:
    """Returns the schema ids in Confluent headers: a zero byte, followed by the id as 4 bytes, big-endian."""
    return tuple(sorted(schema_id for head in heads if (schema_id := schema_id_of(head)) is not None))


Ids = Mapping[SubjectPart, Iterable[int]]

PARTS: Final[tuple[SubjectPart, ...]] = ("key", "value")
# Seconds for which an unknown id is requested from the registry, before its records are bad records.
LAG_SECONDS: Final = 5.0
# Seconds after which a batch with bad records requests their unknown ids again.
ASK_AGAIN_SECONDS: Final = 30.0

_NO_SCHEMA: Final = "The schema registry has no schema id {}. Check that the producer uses this registry."
_OTHER_NOW: Final = (
    "The schema registry now has a different schema under id {} than when the worker started, for example "
    "after a restore from an older backup. It is not known with which of the two a record was written. "
    "Restore the registry's newer state, and then start the worker again."
)
_OTHERS_SCHEMA: Final = (
    "Schema id {} belongs to the Avro record {}, but this topic's subjects have another record. Two tables "
    "must not share a topic. Send each table to a topic of its own."
)


def may_lag(error: BaseException) -> bool:
    """Returns True if a request may be retried, because the registry does not have a schema yet.

    A replica of the registry that lags behind may have the schema a little later.
    """
    return isinstance(error, SchemaNotFoundError)


class _Unknown(NamedTuple):
    """A schema id whose records are bad records.

    ``reason``: the reason. ``asked``: the time in seconds when the id was last requested from the registry.
    """

    reason: str
    asked: float


class WriterSchemas:
    """The known schemas of a topic's two subjects, for keys and values. Used by one thread at a time.

    Methods that send requests raise RegistryError if the registry refuses the request or does not answer, and
    StopRequestedError if a stop is requested while they wait for the next try.

    Args:
        registry: Reads schemas.
        topic: The topic.
        lag: The retry policy for schemas that the registry may have later (``may_lag``).
        clock: Returns seconds and never runs backwards.
        subject_of: Returns the name of a topic's subject.
        of_no_table: Returns True for a schema of records that change no row, such as watermarks.
    """

    def __init__(
        self,
        registry: SchemaReader,
        topic: str,
        *,
        lag: Retry,
        clock: Callable[[], float] = time.monotonic,
        subject_of: Callable[[str, SubjectPart], str] = subject,
        of_no_table: Callable[[str], bool] = lambda _text: False,
    ) -> None:
        self._registry = registry
        self._topic = topic
        self._lag = lag
        self._clock = clock
        self._subject_of = subject_of
        self._of_no_table = of_no_table
        self._unknown: dict[tuple[SubjectPart, int], _Unknown] = {}
        # True: all versions of the subjects belong to the table. False: only versions that occur in its
        # records.
        self.takes_all = True
        self._offered: dict[SubjectPart, dict[int, str]] = {"key": {}, "value": {}}
        self._versions: dict[SubjectPart, list[int]] = {"key": [], "value": []}
        self.texts: dict[SubjectPart, dict[int, str]] = {"key": {}, "value": {}}

    @property
    def unknown(self) -> dict[int, str]:
        """The reason why records are bad records, by schema id.

        These are the ids that the registry does not have, or whose schemas cannot be used.
        """
        return {schema_id: refused.reason for (_, schema_id), refused in self._unknown.items()}

    def versions(self, part: SubjectPart) -> tuple[int, ...]:
        """Returns the known schema ids of keys or values, in the order of the subject's versions.

        Ids do not always grow with versions, because a registry reuses the id that a schema has under another
        subject. An id that no version of the subject has is inserted after the last smaller id.
        """
        ids = [known_id for known_id in self._versions[part] if known_id in self.texts[part]]
        for schema_id in sorted(self.texts[part].keys() - {*ids}):
            smaller = [index for index, known_id in enumerate(ids) if known_id < schema_id]
            ids.insert(smaller[-1] + 1 if smaller else 0, schema_id)
        return tuple(ids)

    def read_subjects(self) -> None:
        """Read all versions of the topic's subjects, because a column's history needs all of them."""
        self._lag.call(self._read_subjects)

    def take_newest(self) -> None:
        """Use the newest version of each subject, for a table without records."""
        self.read_subjects()
        for part in PARTS:
            if self._versions[part]:
                self._known(part, self._versions[part][-1])

    def lacks(self, ids: Ids) -> bool:
        """Returns True if some of the schema ids were never looked up."""
        return any(True for _ in self._lacking(ids))

    def look_up(self, ids: Ids) -> None:
        """Read the schema of each id from the registry.

        If the registry still does not have an id after ``LAG_SECONDS``, records with this id are bad records.
        """
        try:
            self._lag.call(lambda: self._ask(ids))
        except SchemaNotFoundError:
            for part, schema_id in list(self._lacking(ids)):
                self._refuse(part, schema_id, _NO_SCHEMA.format(schema_id))

    def look_again(self) -> bool:
        """Request unknown ids again, if their last request is ``ASK_AGAIN_SECONDS`` ago.

        Returns True if one of them is known now.
        """
        late = self._clock() - ASK_AGAIN_SECONDS
        stale = [key for key, refused in self._unknown.items() if refused.asked <= late]
        if not stale:
            return False
        self.read_subjects()
        for part, schema_id in stale:
            if not self._known(part, schema_id):
                self._refuse(part, schema_id, _NO_SCHEMA.format(schema_id))
        return any(key not in self._unknown for key in stale)

    def _lacking(self, ids: Ids) -> Iterator[tuple[SubjectPart, int]]:
        for part in PARTS:
            for schema_id in ids.get(part, ()):
                if schema_id not in self.texts[part] and (part, schema_id) not in self._unknown:
                    yield part, schema_id

    def _ask(self, ids: Ids) -> None:
        """Request the missing schemas once.

        Raises:
            SchemaNotFoundError: The registry does not have one of them.
        """
        self._read_subjects()
        missing = [
            (part, schema_id)
            for part, schema_id in list(self._lacking(ids))
            if not self._known(part, schema_id)
        ]
        if missing:
            raise SchemaNotFoundError(
                f"The schema registry does not have schema ids {sorted({number for _, number in missing})}.",
                topic=self._topic,
            )

    def _known(self, part: SubjectPart, schema_id: int) -> bool:
        """Request the schema of an id, if it is not known yet. Returns False if the registry lacks the id.

        If the schema cannot be used, records with the id are bad records.
        """
        if schema_id in self.texts[part]:
            return True
        if schema_id in self._offered[part]:
            self._take(part, schema_id, self._offered[part][schema_id])
            return True
        try:
            text = self._text_of(part, schema_id)
        except SchemaNotFoundError:
            return False
        except UnusableSchemaError as error:
            self._refuse(part, schema_id, f"Schema id {schema_id} cannot be used. {error.message}")
            return True
        names = {_full_name(known_text) for known_text in self.texts[part].values()}
        if names and _full_name(text) not in names and not self._of_no_table(text):
            self._refuse(part, schema_id, _OTHERS_SCHEMA.format(schema_id, _full_name(text)))
        else:
            self._take(part, schema_id, text)
        return True

    def _text_of(self, part: SubjectPart, schema_id: int) -> str:
        """Request the schema text of an id that a record has.

        The record's subject is passed with the id if the registry has contexts, in which ids can differ.
        """
        if isinstance(self._registry, ContextReader):
            return self._registry.schema_of_subject(schema_id, self._subject_of(self._topic, part))
        return self._registry.schema_by_id(schema_id)

    def _read_subjects(self) -> None:
        for part in PARTS:
            name = self._subject_of(self._topic, part)
            try:
                versions = self._registry.versions(name)
            except SchemaNotFoundError:
                continue
            ids = []
            for version in versions:
                try:
                    registered = self._registry.schema_by_version(name, version)
                except UnusableSchemaError as error:
                    # A version without records is only reported in this log message. Records with the version
                    # are bad records.
                    _log.warning("schema not used", subject=name, version=version, error=error.message)
                    continue
                if self.takes_all or registered.id in self.texts[part]:
                    self._take(part, registered.id, registered.schema_text)
                self._offered[part][registered.id] = registered.schema_text
                ids.append(registered.id)
            self._versions[part] = ids

    def _take(self, part: SubjectPart, schema_id: int, text: str) -> None:
        known_text = self.texts[part].get(schema_id, text)
        if known_text != text and _parsed(known_text) != _parsed(text):
            raise RegistryError(_OTHER_NOW.format(schema_id), topic=self._topic, schema_id=schema_id)
        self.texts[part][schema_id] = text
        self._unknown.pop((part, schema_id), None)

    def _refuse(self, part: SubjectPart, schema_id: int, reason: str) -> None:
        self._unknown[part, schema_id] = _Unknown(reason, self._clock())


def _parsed(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _full_name(text: str) -> str | None:
    """Returns the namespace and name of an Avro record schema, or None for any other schema."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return f"{record.get('namespace')}.{record.get('name')}" if isinstance(record, dict) else None


_NO_SUMS: Final = (
    "source.checksum is set, but no schema of this table has a checksum field, so no row is checked. To get "
    "checksums, set the variable tidb_enable_row_level_checksum in TiDB. In the changefeed, set "
    'integrity-check-level = "correctness", enable-tidb-extension=true, avro-decimal-handling-mode=string '
    "and avro-bigint-unsigned-handling-mode=string."
)


class FlatAvroDecoding(RegisteredDecoding):
    """The writer schemas of one flat-avro table, and the decode plan that is built from them."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about columns that have another type in the target than usual, and missing checksums."""
        asked = self._parts.config.source.checksum != "off"
        lacking = asked and lacks_checksums(self._schemas.texts["value"].values())
        return (*super().warnings, _NO_SUMS) if lacking else super().warnings

    @property
    def types_from(self) -> TypesFrom:
        return "avro"

    def _found_subjects(self) -> bool:
        return any(self._schemas.texts.values())

    def _planned(self) -> DecodePlan:
        return flat_avro_plan(
            self._settings.table,
            self._subject_schemas,
            self._plan_settings,
            checksum=self._parts.config.source.checksum,
        )


def open_flat_avro(parts: DecodingParts, topic: str, table: TableId) -> FlatAvroDecoding:
    """Open the source of schemas and decode plans for the flat-avro table of a topic.

    Raises:
        ConfigError: The config names no schema registry.
    """
    if parts.registry is None:
        raise ConfigError("The protocol flat-avro needs a schema registry. Set source.schema-registry.")
    lag = parts.retries(table, seconds=LAG_SECONDS, passes=may_lag)
    schemas = WriterSchemas(parts.registry, topic, lag=lag)
    return FlatAvroDecoding(parts, topic, table, schemas=schemas)


_NO_REGISTRY: Final = "The protocol debezium-avro needs a schema registry. Set source.schema-registry."


class _WithIdentity(LoneDecoding):
    """Base class that queries the source database for the columns that Postgres sends for deleted rows.

    The database is queried before the first decode plan is built. If it does not answer, it is queried again
    before each later plan.
    """

    @cached_property
    def _asked(self) -> AskedIdentity:
        database, table = self._parts.config.source.database, self._settings.table
        return AskedIdentity(partial(replica_identity, database, table))

    @property
    def _identity(self) -> ReplicaIdentity | None:
        """The table's replica identity in the source database.

        None if it is not known, or if it is not needed because the config names the key columns.
        """
        return self._asked.get() if self._settings.keys is None else None

    @property
    def _connector(self) -> str:
        """The Debezium connector that fits the source database, for records that do not name theirs."""
        return database_connector(self._parts.config.source.database)


class DebeziumAvroDecoding(_WithIdentity, RegisteredDecoding):
    """The writer schemas of one debezium-avro table, and the decode plan that is built from them."""

    def __init__(
        self,
        parts: DecodingParts,
        topic: str,
        table: TableId,
        *,
        schemas: WriterSchemas,
    ) -> None:
        super().__init__(parts, topic, table, schemas=schemas)
        self._definition = declared_table(self._settings.definition, table)

    @property
    def types_from(self) -> TypesFrom:
        return "avro" if self._definition is None else "definition"

    def _found_subjects(self) -> bool:
        return bool(self._schemas.texts["value"])

    def _planned(self) -> DecodePlan:
        return debezium_avro_plan(
            self._settings.table,
            self._subject_schemas,
            self._plan_settings,
            definition=self._definition,
            modes=self._parts.config.source.options_of(DebeziumOptions).debezium,
            database=DatabaseFacts(identity=self._identity, connector=self._connector),
        )


def subject_of(topic: str, part: SubjectPart) -> str:
    """Returns the name of a topic's subject by TopicNameStrategy: ``<topic>-key`` or ``<topic>-value``."""
    return f"{topic}-{part}"


def open_debezium_avro(parts: DecodingParts, topic: str, table: TableId) -> DebeziumAvroDecoding:
    """Open the source of schemas and decode plans for the debezium-avro table of a topic.

    Raises:
        ConfigError: The config names no schema registry, or the definition in the config describes another
            table.
    """
    if parts.registry is None:
        raise ConfigError(_NO_REGISTRY)
    lag = parts.retries(table, seconds=LAG_SECONDS, passes=may_lag)
    schemas = WriterSchemas(parts.registry, topic, lag=lag, subject_of=subject_of, of_no_table=names_no_row)
    return DebeziumAvroDecoding(parts, topic, table, schemas=schemas)


# Number of records in the first read of a topic to find its columns.
_PEEKED_JSON_RECORDS: Final = 1_000
# Number of records at a partition's end that are read to find its newest columns. One of them is assumed to
# have a whole row.
_LAST_JSON_RECORDS: Final = 100


_NO_ROW: Final = (
    "None of the first records of {} could be decoded, so the table's columns are unknown. Check that "
    "Debezium or TiCDC writes the topic. The first error: {}"
)


class DebeziumJsonDecoding(_WithIdentity, LoneDecoding):
    """The writers (schemas of records) of one debezium-json table, and the decode plan built from them."""

    def __init__(self, parts: DecodingParts, topic: str, table: TableId) -> None:
        super().__init__(parts, topic, table)
        self._declared = declared_table(self._settings.definition, table)
        self._options = parts.config.source.options_of(DebeziumOptions)
        self._types = RecordTypes.of(parts.config, topic, table, self._declared, parts.store)
        self._writers = Writers()
        # Spans of rows by the identity of their writer. Rows without a schema are left out, because they may
        # lack columns.
        self._use = SchemaUse[tuple[str, ...]]()
        # The first record that could not be decoded while the table's columns were searched.
        self._fault: DecodeError | None = None
        # The end offsets up to which last records were read to find newer columns.
        self._looked_to: Mapping[int, int] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about columns with an unknown type, or with another type in the target than usual."""
        untyped = self._types.untyped(self._writers)
        return (*super().warnings, *(f"column {name}: {UNTYPED}" for name in untyped))

    @property
    def types_from(self) -> TypesFrom:
        if self._declared is not None:
            return "definition"
        if self._types.stored is not None:
            return "database"
        untyped = self._types.untyped(self._writers)
        return "nothing" if untyped and not self._writers.with_schema else "records"

    def prepare(self, topic_offsets: TopicOffsets, starts: Starts = NO_STARTS) -> None:
        """Read records from the table's start on until one defines the columns, and build the decode plan."""
        self._starts = starts
        parts = self._of_table(topic_offsets).partitions
        everything = [OffsetRange(self._topic, n, *offsets) for n, offsets in parts.items()]
        for part in growing_parts(everything, _PEEKED_JSON_RECORDS):
            if self._found_writer(part):
                break
        self._settle(topic_offsets)
        if self._lacks_named():
            self._look_at_ends(topic_offsets)

    def _lacks_named(self) -> bool:
        """Returns True if the config names a column that the decode plan lacks. Newer records may have it.

        A column whose name differs only in case counts as another column, because newer records may have
        both.
        """
        shape = self.columns().shape
        names = [name for _, name in named_columns(self._settings.projection)]
        return names != [None if (column := shape.find(name)) is None else column.name for name in names]

    def learn(self, missed: Missed) -> bool:
        """Add the schemas of records (writers) that the plan lacked for a batch.

        Returns True if a new decode plan was built.
        """
        new = [writer_of(text) for text in missed.summary.unplanned.columns]
        return self._take(new, missed.found)

    def catch_up(self, ranges: Sequence[OffsetRange] | None, topic_offsets: TopicOffsets) -> None:
        """Find the newest columns before rows of a snapshot are written, which are newer than the topic.

        Before other batches this is not needed, because their tasks report new columns in records.
        """
        if ranges is None:
            self._look_at_ends(topic_offsets)

    def _look_at_ends(self, topic_offsets: TopicOffsets) -> None:
        """Add the writers (schemas of records) of the last records in each partition."""
        parts = last_records(
            self._topic, self._of_table(topic_offsets), self._looked_to, most=_LAST_JSON_RECORDS
        )
        new = [writer for part in parts for writer in self._writers_in(part)]
        self._take(new, topic_offsets)
        self._looked_to = {number: offsets.latest for number, offsets in topic_offsets.partitions.items()}

    def _take(self, new: Sequence[JsonWriter], topic_offsets: TopicOffsets) -> bool:
        """Add writers (schemas of records), and build a new decode plan if some of them are new.

        Returns True if a new decode plan was built.
        """
        before, writers = self._writers, self._with_new(new, later=True)
        if writers == before:
            return False
        self._writers = writers
        try:
            self._settle(topic_offsets)
        except TidesinkError:
            self._writers = before
            raise
        return True

    def _settle(self, topic_offsets: TopicOffsets) -> None:
        """Build the decode plan, once all columns have a type or may be stored as text."""
        typed = partial(self._typed_at_ends, topic_offsets)
        self._writers = self._types.settled(self._writers, typed, self._with_new)
        self._make()

    def _typed_at_ends(self, topic_offsets: TopicOffsets) -> Iterator[JsonWriter]:
        """Yields the newest writers with a schema in the last records of each partition."""
        for part in last_records(self._topic, topic_offsets, {}, most=_LAST_JSON_RECORDS):
            writer = newest_typed(self._messages_in(part), self._options)
            if writer is not None:
                yield writer

    def _with_new(self, new: Iterable[JsonWriter], *, later: bool = False) -> Writers:
        """Returns the known writers with the writers ``new`` added, and determines which one is in use."""
        new_writers = [*new]
        for writer in new_writers:
            if not writer.bare:
                row = RowPosition(writer.place.offset, None, writer.place.timestamp)
                self._use.saw(writer.identity, writer.place.partition, RowSpan.of(row))
        writers = self._writers.with_new(new_writers, later=later)
        identities = [writer.identity for writer in writers.with_schema]
        return replace(writers, newest=self._use.newest(identities)) if identities else writers

    def _writers_in(self, part: OffsetRange) -> Iterator[JsonWriter]:
        """Yields the writer (schema) of the last record in a range that has all columns, if there is one."""
        row = first_row(reversed(self._messages_in(part)), self._options, self._types.schema)
        if row is not None:
            yield first_writer(row)

    def _messages_in(self, part: OffsetRange) -> list[Message]:
        return [*self._parts.reader.messages_here([part])]

    def _found_writer(self, ranges: Sequence[OffsetRange]) -> bool:
        """Read records of the ranges. Returns True if one of them defines the table's columns."""
        faults: list[DecodeError] = []
        messages = self._parts.reader.messages_here(ranges)
        row = first_row(messages, self._options, self._types.schema, faults=faults)
        self._fault = self._fault or next(iter(faults), None)
        if row is not None:
            self._writers = self._with_new([first_writer(row)])
        return row is not None

    def _make(self) -> None:
        table = self._settings.table
        if self._fault is not None and self._writers == Writers() and self._declared is None:
            raise ConfigError(_NO_ROW.format(table, self._fault), table=str(table))
        self._plan = debezium_json_plan(
            table,
            self._writers,
            self._plan_settings,
            definition=self._declared,
            options=self._options,
            database=DatabaseFacts(self._types.stored, self._identity, self._connector),
        )


def last_records(
    topic: str, topic_offsets: TopicOffsets, looked_to: Mapping[int, int], *, most: int
) -> list[OffsetRange]:
    """Returns the range of the last ``most`` offsets of each partition.

    ``looked_to``: offset per partition up to which records were read before. These records are left out, and
    so are empty ranges.
    """
    ends = (
        OffsetRange(topic, n, max(earliest, latest - most, looked_to.get(n, 0)), latest)
        for n, (earliest, latest) in topic_offsets.partitions.items()
    )
    return [part for part in ends if part.records > 0]


def open_debezium_json(parts: DecodingParts, topic: str, table: TableId) -> DebeziumJsonDecoding:
    """Open the source of schemas and decode plans for the debezium-json table of a topic.

    Raises:
        ConfigError: The definition in the config describes another table.
    """
    return DebeziumJsonDecoding(parts, topic, table)
