"""Decoding a flat-avro table: its writer schemas, by the registry's ids.

Every version of the topic's two subjects is asked for first, so that a column's history is known; an id
that a batch meets beyond them is asked for by itself. TiCDC's subjects follow TopicNameStrategy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tidesink.change import TableId
from tidesink.codecs.columns_flat_avro import FlatAvroColumns, flat_avro_columns
from tidesink.errors import ConfigError, SchemaNotFoundError
from tidesink.schema_registry import SchemaRegistry, SubjectPart, subject
from tidesink.sinks.decoding import Missed
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange, plan_ranges
from tidesink.sinks.records_spark import schema_heads
from tidesink.sinks.source import translated_read_errors
from tidesink.sinks.surroundings import Surroundings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PARTS: Final[tuple[SubjectPart, ...]] = ("key", "value")
# Where the registry has no subject for the topic, so many records are looked at for their schema ids.
_PEEKED_RECORDS: Final = 10_000
_NO_SCHEMA: Final = "schema id {} is unknown to the registry: is it the registry TiCDC writes to?"
_OTHERS_SCHEMA: Final = (
    "schema id {} is of {}, which is no record of this topic's subjects: two tables must not share a topic"
)


class FlatAvroDecoding:
    """One table's writer schemas, and the plan they make."""

    def __init__(
        self,
        around: Surroundings,
        topic: str,
        table: TableId,
        *,
        registry: SchemaRegistry,
        session: SparkSession,
    ) -> None:
        self._around = around
        self._topic = topic
        self._settings = around.config.table_config(table)
        self._registry = registry
        self._session = session
        self._texts: dict[SubjectPart, dict[int, str]] = {"key": {}, "value": {}}
        self._unknown: dict[int, str] = {}
        self._plan: FlatAvroColumns | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """Columns whose type at the target is not the nearest one, with the reason."""
        columns = self._plan.shape.columns if self._plan else ()
        return tuple(f"column {column.name}: {column.reason}" for column in columns if column.reason)

    def prepare(self, found: TopicOffsets) -> None:
        """Read the topic's subjects; where there are none, the ids in its first records."""
        for part in _PARTS:
            self._read_subject(part)
        if not self._texts["value"] and not self._texts["key"]:
            for part, ids in self._peek(found).items():
                self._add(part, ids)
        self._make()

    def columns(self) -> FlatAvroColumns:
        """The plan over every schema known."""
        if self._plan is None:
            raise ConfigError("prepare the table first", table=str(self._settings.table))
        return self._plan

    def apart(self) -> None:
        """A flat-avro topic holds one table."""

    def meet_others(self, _missed: Missed) -> None:
        """Never: there are no others."""

    def learn(self, missed: Missed) -> bool:
        """Look up the ids that the batch's plan did not know."""
        ids = {"key": missed.summary.unplanned_key_ids, "value": missed.summary.unplanned_value_ids}
        if not any(self._lacks(part, ids[part]) for part in _PARTS):
            return False
        for part in _PARTS:
            # The subject may have grown by more than the batch shows; a column's history wants it all.
            self._read_subject(part)
            self._add(part, self._lacks(part, ids[part]))
        self._make()
        return True

    def take_ddl(self, _reduced: DataFrame, _missed: Missed) -> bool:
        """Nothing: types come with the writer schemas."""
        return False

    def _lacks(self, part: SubjectPart, ids: tuple[int, ...]) -> tuple[int, ...]:
        known = self._texts[part].keys() | self._unknown.keys()
        return tuple(schema_id for schema_id in ids if schema_id not in known)

    def _read_subject(self, part: SubjectPart) -> None:
        name = subject(self._topic, part)
        try:
            versions = self._registry.versions(name)
        except SchemaNotFoundError:
            return
        for version in versions:
            found = self._registry.schema_by_version(name, version)
            self._texts[part][found.id] = found.schema_text

    def _add(self, part: SubjectPart, ids: tuple[int, ...]) -> None:
        names = {_full_name(text) for text in self._texts[part].values()}
        for schema_id in ids:
            try:
                text = self._registry.schema_by_id(schema_id)
            except SchemaNotFoundError:
                self._unknown[schema_id] = _NO_SCHEMA.format(schema_id)
                continue
            if names and _full_name(text) not in names:
                self._unknown[schema_id] = _OTHERS_SCHEMA.format(schema_id, _full_name(text))
            else:
                self._texts[part][schema_id] = text

    def _peek(self, found: TopicOffsets) -> dict[SubjectPart, tuple[int, ...]]:
        """Schema ids in the topic's first records (Confluent framing: 00, then 4 bytes, big-endian)."""
        everything = [OffsetRange(self._topic, n, *at) for n, at in found.partitions.items()]
        ranges = plan_ranges(everything, max_records=_PEEKED_RECORDS)
        if not any(part.records for part in ranges):
            return {}
        raw = self._around.source.frame(self._session, ranges)
        with translated_read_errors(self._topic):
            rows = schema_heads(raw)
        return {part: _ids(row[part] for row in rows) for part in _PARTS}

    def _make(self) -> None:
        settings = self._settings
        self._plan = flat_avro_columns(
            settings.table,
            key_schemas=self._texts["key"],
            value_schemas=self._texts["value"],
            unknown_ids=self._unknown,
            base=self._plan.shape if self._plan else None,
            keys=settings.keys,
            zero_date=settings.zero_date,
            time_zone=settings.time_zone,
        )


def _full_name(text: str) -> str | None:
    """An Avro record's namespace and name; None for a schema that is no record."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return f"{record.get('namespace')}.{record.get('name')}" if isinstance(record, dict) else None


def _ids(heads: Iterable[str | None]) -> tuple[int, ...]:
    found = {head for head in heads if head and len(head) == 10 and head.startswith("00")}
    return tuple(sorted(int(head[2:], 16) for head in found))


def open_decoding(
    around: Surroundings, topic: str, table: TableId, *, session: SparkSession
) -> FlatAvroDecoding:
    """The decoding of one topic's table.

    Raises:
        ConfigError: the config names no schema registry.
    """
    if around.registry is None:
        raise ConfigError("flat-avro needs source.schema-registry: the schemas are there")
    return FlatAvroDecoding(around, topic, table, registry=around.registry, session=session)
