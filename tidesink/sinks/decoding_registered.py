"""Decoding a table whose schemas are in a registry, whichever Avro codec wrote it: by the registry's ids.

Every version of the topic's two subjects is asked for first, so that a column's history is known; an id
that a batch meets beyond them is asked for by itself.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.schema_registry import SubjectPart
from tidesink.sinks.batch.decoded_frame import DecodePlan
from tidesink.sinks.batch.decoders import UNDER_CONFLUENT
from tidesink.sinks.decoding import Missed
from tidesink.sinks.decoding_planned import LoneDecoding
from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange, plan_ranges
from tidesink.sinks.records_spark import schema_heads
from tidesink.sinks.source import translated_read_errors
from tidesink.sinks.surroundings import Surroundings
from tidesink.sinks.writer_schemas import PARTS, Ids, WriterSchemas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# How AWS Glue's header begins, as hexadecimal text: whether the payload is compressed stands behind the 03.
_GLUE_HEADS: Final = ("0300", "0305")
# Where the registry has no subject for the topic, so many records are looked at for their schema ids.
_PEEKED_RECORDS: Final = 10_000


class RegisteredDecoding(LoneDecoding):
    """One table's writer schemas, and the plan they make."""

    def __init__(
        self,
        around: Surroundings,
        topic: str,
        table: TableId,
        *,
        schemas: WriterSchemas,
        session: SparkSession,
    ) -> None:
        super().__init__(around, topic, table, session=session)
        self._schemas = schemas

    @abstractmethod
    def _planned(self) -> DecodePlan:
        """The plan over every schema known; the shape of the last one is only added to."""

    @abstractmethod
    def _found_subjects(self) -> bool:
        """Whether the topic's subjects told enough to plan with."""

    def prepare(self, found: TopicOffsets) -> None:
        """Read the topic's subjects; where they are not there, the ids in its first records."""
        self._schemas.read_subjects()
        if not self._found_subjects():
            self._schemas.look_up(self._peeked_ids(found))
        self._plan = self._planned()

    def _peeked_ids(self, found: TopicOffsets) -> Ids:
        """The schema ids in the topic's first records; a topic under Glue's headers has none to plan with."""
        heads = peeked_heads(self._around, self._session, found)
        ids: Ids = {part: _ids(heads[part]) for part in PARTS}
        under_glue = any(head and head.startswith(_GLUE_HEADS) for part in PARTS for head in heads[part])
        if under_glue and not any(ids.values()):
            raise ConfigError(
                f"the records of {found.topic} are under headers of the AWS Glue schema registry; workers "
                f"read Confluent's alone: {UNDER_CONFLUENT[self._around.config.source.protocol]}",
                table=str(self._table),
            )
        return ids

    def learn(self, missed: Missed) -> bool:
        """Look up the ids that the batch's plan did not know, or ask again for those called bad."""
        summary = missed.summary
        ids: Ids = {"key": summary.unplanned_key_ids, "value": summary.unplanned_value_ids}
        if self._schemas.lacks(ids):
            self._schemas.look_up(ids)
        elif not (summary.bad and self._schemas.look_again()):
            return False
        self._plan = self._planned()
        return True


def peeked_heads(
    around: Surroundings, session: SparkSession, found: TopicOffsets
) -> dict[SubjectPart, list[str | None]]:
    """How a topic's first records begin, keys and values: five bytes each as hexadecimal text."""
    everything = [OffsetRange(found.topic, n, *at) for n, at in found.partitions.items()]
    ranges = plan_ranges(everything, max_records=_PEEKED_RECORDS)
    if not any(part.records for part in ranges):
        return {part: [] for part in PARTS}
    raw = around.source.frame(session, ranges)
    with translated_read_errors(found.topic):
        rows = schema_heads(raw)
    return {part: [row[part] for row in rows] for part in PARTS}


def _ids(heads: Iterable[str | None]) -> tuple[int, ...]:
    """The schema ids in heads (Confluent framing: 00, then 4 bytes, big-endian)."""
    found = {head for head in heads if head and len(head) == 10 and head.startswith("00")}
    return tuple(sorted(int(head[2:], 16) for head in found))
