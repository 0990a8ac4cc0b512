"""What every codec's column expressions are: a raw Kafka frame to a decoded one, inside the JVM.

The raw frame is Spark's own Kafka batch: ``topic string, partition int, offset bigint,
timestamp timestamp, key binary, value binary``.

The decoded frame has one row an event:

==================  ==========================  ====================================================
column              type                        meaning
==================  ==========================  ====================================================
``_topic``          string
``_partition``      int
``_offset``         bigint
``_index``          int                         which event of the message, from 0
``_kind``           string                      one of ``KINDS``
``_commit_ts``      bigint                      null where the wire does not say
``_error``          string                      ``bad``: a class name of ``tidesink.errors``
``_reason``         string                      ``bad``: what is wrong; a row: a warning about it
``_zero_dates``     array<string>               columns whose date no calendar has was made null
``_schema_key_id``  int                         ``unplanned`` and ``bad``, flat-avro
``_schema_value_id``  int                       ``unplanned`` and ``bad``, flat-avro
``_fields``         array<string>               ``unplanned``, canal-json: columns the plan lacks
``_key``            binary                      the record's key, for ``bad`` and ``ddl`` alone
``_value``          binary                      the record's value, for ``bad`` and ``ddl`` alone
``key``             struct of the key columns   rows only
``old_key``         struct of the key columns   an update which changes the key, else null
``after``           struct of all columns       upserts only
``_wire_op``        string                      upserts: ``insert`` or ``update``, null where nothing tells
``_kept``           array<string>               only in frames of a plan that ``keeps_values``: the names
                                                of columns of ``after`` whose value the source did not
                                                send, so that what is stored stays; null where it sent all
``_unmatched``      boolean                     only in frames under a filter: the delete is an upsert whose
                                                row does not satisfy it; never null
``_change``         string                      only in frames of a plan that ``logs``: ``insert``,
                                                ``update``, ``delete``, or ``upsert`` where nothing tells
``before``          struct of all columns       likewise: the row before an update, or the deleted one;
                                                null where the wire has it not, or its key alone
``_before_kept``    array<string>               likewise: as ``_kept``, of ``before``
``_position``       string                      only in frames of a Debezium plan with ``positions``: where
                                                the change stands at its source, ``Position.source_text``
==================  ==========================  ====================================================

``unplanned`` is a message the plan was not made for (an unknown schema id, an unknown column): look it
up, plan anew, decode the batch again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from tidesink.typemap.target_schema import TableShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

UPSERT: Final = "upsert"
DELETE: Final = "delete"
DDL: Final = "ddl"
WATERMARK: Final = "watermark"
BAD: Final = "bad"
UNPLANNED: Final = "unplanned"
# A record that says nothing of rows or tables: a heartbeat, a transaction's end, a tombstone.
MESSAGE: Final = "message"
# Everything that was in the table before it is gone.
TRUNCATE: Final = "truncate"

# The column of a change's place in the source's log, where a plan is asked for it.
POSITION: Final = "_position"

KINDS: Final = (UPSERT, DELETE, DDL, WATERMARK, BAD, UNPLANNED, MESSAGE, TRUNCATE)
ROW_KINDS: Final = (UPSERT, DELETE)
FILTERED_KINDS: Final = (DDL, WATERMARK, MESSAGE)
# Of these one reduced row a topic-partition is enough: nothing but their number is asked for.
COUNTED_KINDS: Final = (WATERMARK, MESSAGE)


class DecodeColumns(Protocol):
    """A plan: the expressions that decode one table's batch into one shape."""

    @property
    def shape(self) -> TableShape:
        """What ``after`` holds: the columns of every writer schema planned for, and the base shape's."""

    @property
    def changes_keys(self) -> bool:
        """Whether a record may stand for several rows: it has an update's old key, or several events."""

    @property
    def keeps_values(self) -> bool:
        """Whether the decoded frame has ``_kept``: a row may lack values that are to stay as stored.

        It does not change with a topic's records: a config that asks for what this forbids is told at once.
        """

    @property
    def kept_columns(self) -> frozenset[str]:
        """The columns of the shape that ``_kept`` may name: each costs the reduction an aggregate."""

    @property
    def gone(self) -> frozenset[str]:
        """Columns of the shape, in lower case, that the source is known not to have any more."""

    def decode(self, raw: DataFrame) -> DataFrame:
        """The decoded frame of a raw one; lazy, in one pass."""
