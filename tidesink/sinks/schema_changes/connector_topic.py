"""The topic to which a Debezium connector for MySQL or MariaDB writes the source's DDL (ADR 34).

Debezium calls it the schema change topic. It has the name of the connector's ``topic.prefix``. A record has
the fields ``databaseName``, ``ddl``, ``source`` with the position in the server's log, and ``tableChanges``
(Debezium 3.5.0.Final, captured; its documentation of "schema change topic"). A statement that names several
tables is written once for each table. Records that are part of a connector's snapshot describe the existing
tables and are skipped. TRUNCATE is not written to this topic: the connector writes it to the table's own
topic, if ``skipped.operations`` allows it.

The topic has one partition. Its records are not ordered relative to the records of the tables' topics. The
state store has the statements that were read. If it is lost, the topic is read again from its beginning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import structlog

from tidesink.codecs.batch import messages
from tidesink.ddl.row_changes import (
    NOT_UNDERSTOOD,
    DdlEffects,
    RowChange,
    RowDdl,
)
from tidesink.ddl.topic_statements import newest_row_ddl
from tidesink.errors import ConfigError, SourceError, TidesinkError
from tidesink.events import DdlEvent, Event, Message, TableId
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.fetch import last_record
from tidesink.sinks.kafka.leader_epochs import CheckedLogs, LeaderEpochs
from tidesink.sinks.kafka.offsets import Look, OffsetRange, TopicOffsets, is_other_topic
from tidesink.sinks.spark.errors import fault_of
from tidesink.sinks.state.documents import DocumentKind
from tidesink.sinks.state.progress import LastRecord, StateStore

PARTITION: Final = 0
_PAGE_RECORDS: Final = 1000
# Values of ``source.snapshot`` in records that report a change. Records with another value are part of a
# snapshot.
_STREAMED: Final = (None, False, "false", "incremental")
_ABSENT: Final = (
    "The brokers have no topic {} (source.debezium.schema-change-topic), so DDL that changes rows at the "
    "source is not known. Set schema-change-topic to the connector's topic.prefix."
)
_UNREAD: Final = "The source's DDL in topic {} could not be read, and will be read again: {}"
_EXPIRED: Final = (
    "Records of topic {} were deleted by retention before they were read, or Kafka lost them (unclean leader "
    "election). The source's DDL in these records is not known. Compare the tables with their source "
    "(`tidesink diff`), and have Kafka keep all records of the topic (retention.ms=-1)."
)

# The kind of a statement whose record has no ``tableChanges``.
_NO_CHANGES: Final = "QUERY"
_RENAMED: Final = "existing values stay in the column with the old name, and are NULL under the new one ({})"

_CONVERTED: Final = (
    "values of {} that do not fit the new definition were rounded or cut at the source, but are unchanged in "
    "the target (run `tidesink resync TABLE` to correct them)"
)

_OLD_COLUMNS: Final = (
    "the connector did not read the new table's columns from this statement and still uses the old table's "
    "columns. Unless both tables have the same columns in the same order, the connector sends later values "
    "under wrong names, even after a resync. First have the connector read its schema again "
    "(docs/schema-changes.md, A table that is replaced)"
)

Decode = Callable[[Message], tuple[Event, ...]]
_log = structlog.get_logger("tidesink.worker")


class SourceStatement(NamedTuple):
    """A DDL statement that changes rows or column names of a table.

    ``ddl``: the statement. ``sent``: the timestamp of its Kafka record in ms since 1970.
    """

    ddl: RowDdl
    sent: int


@dataclass(frozen=True)
class _StoredStatements:
    """The statements that were read from a schema change topic, in the state store.

    Attributes:
        topic_id: Kafka's id of the topic.
        next_offset: The offset up to which the topic was read.
        lacks: True if records were deleted or lost before they were read.
        last: The last record that was read, if it has a leader epoch.
        statements: The newest statements, in the topic's order.
    """

    topic_id: str
    next_offset: int
    lacks: bool
    last: LastRecord | None
    statements: tuple[SourceStatement, ...]


_STATEMENTS: Final = DocumentKind("schema-changes", _StoredStatements)


class SchemaChangeTopic:
    """The statements that were read from the schema change topic.

    Only one thread may call ``take``. Any thread may call ``of``.
    """

    def __init__(
        self,
        topic: str,
        *,
        pipeline: str,
        source: KafkaSource,
        store: StateStore,
        log: LeaderEpochs | None = None,
    ) -> None:
        self.topic = topic
        self._logs, self._last = CheckedLogs(log), dict[int, LastRecord]()
        self.topic_id = ""
        self.problem = ""
        self._document = _STATEMENTS.of(store, pipeline, topic)
        self._source = source
        self._lock = threading.Lock()
        self._next = 0
        # True if records were deleted or lost before they were read.
        self._lacks = False
        # True if the topic ended before the next offset when it was last looked up.
        self._was_short = False
        self._known: tuple[SourceStatement, ...] = ()

    def of(self, table: TableId) -> tuple[SourceStatement, ...]:
        """Returns the statements that change rows or column names of a table, in the topic's order."""
        with self._lock:
            source_statements = self._known
        return tuple(statement for statement in source_statements if statement.ddl.concerns(table))

    def take(self, seen: Look, decode: Decode) -> Look:
        """Reads new statements from the schema change topic, up to its end offset in ``seen``.

        ``seen``: the offsets of all topics, as just looked up. Returns ``seen`` without the schema change
        topic, because it has no rows. If the topic cannot be read, the reason is logged and stored in
        ``problem``.
        """
        topic_offsets, error = seen.found.get(self.topic), seen.unanswered.get(self.topic)
        try:
            if topic_offsets is not None:
                self._read(topic_offsets, decode)
            self.problem = ""
        except TidesinkError as exc:
            error = exc  # type: ignore[assignment]
        except Exception as exc:  # noqa: BLE001  (a faulty record must not stop a table)
            _log.error("schema-change topic not read", topic=self.topic, trace=fault_of(exc).trace)
            error = SourceError(f"a record could not be read: {type(exc).__name__}", topic=self.topic)
        if error is not None:
            self._say(_UNREAD.format(self.topic, error))
        elif topic_offsets is None:
            self._say(_ABSENT.format(self.topic))
        elif self._lacks:
            self._say(_EXPIRED.format(self.topic))
        return Look(_without(seen.found, self.topic), _without(seen.unanswered, self.topic))

    def _say(self, problem: str) -> None:
        if problem != self.problem:
            _log.warning("DDL of the source is not known", problem=problem)
        self.problem = problem

    def _read(self, topic_offsets: TopicOffsets, decode: Decode) -> None:
        partition_offsets = topic_offsets.partitions[PARTITION]
        if not self.topic_id or is_other_topic(self.topic_id, topic_offsets.topic_id):
            self._restore(topic_offsets.topic_id)
        if self._is_short(partition_offsets.latest):
            return
        self._follow_cut(topic_offsets)
        while self._next < partition_offsets.latest:
            start = max(self._next, partition_offsets.earliest)
            self._lacks |= start > self._next > 0
            end = min(partition_offsets.latest, start + _PAGE_RECORDS)
            part = OffsetRange(self.topic, PARTITION, start, end)
            read, last = list[SourceStatement](), dict(self._last)
            for records in self._source.read_here([part]):
                record = last_record(records)
                last |= {} if record is None else {PARTITION: record}
                for message in messages(records):
                    read += statements(message, decode) if message.value is not None else ()
            try:
                if not self._logs.follows(topic_offsets, self._last, last):
                    return  # these records are read again after the next look-up of the topic
            except SourceError:
                # The log was cut. No command lets a person confirm the loss for this topic. So the loss is
                # only reported, and the next read uses the records that are left.
                self._lacks, self._last = True, {}
                raise
            self._last = last
            self._keep([*self._known, *read], end)

    def _is_short(self, latest: int) -> bool:
        """Returns True if the topic's end is below the offset up to which it was read, and was not so at the
        previous look-up.

        A broker can return an outdated end once. If the end is still too low at the next look-up, Kafka has
        lost records. Any of the remaining records may have been replaced too, so the topic is read again from
        its beginning.
        """
        if latest >= self._next:
            self._was_short = False
            return False
        if not self._was_short:
            self._was_short = True
            return True
        self._was_short = False
        self._step_back(0)
        return False

    def _follow_cut(self, topic_offsets: TopicOffsets) -> None:
        """Moves the next offset to read back to the first lost record, if Kafka lost the end of the topic's
        log.

        The DDL in the lost records is not known.
        """
        cut = self._logs.cuts(topic_offsets, self._last).get(PARTITION)
        if cut is not None:
            self._step_back(min(self._next, cut))

    def _step_back(self, offset: int) -> None:
        """Sets the next offset to read to an earlier one, because Kafka lost records of the topic.

        The offset is stored with the next page that is read. If the worker restarts before that, the loss is
        detected again.
        """
        self._lacks, self._next, self._last = True, offset, {}

    def _restore(self, topic_id: str) -> None:
        stored = self._document.load()
        if stored is None or is_other_topic(stored.topic_id, topic_id):
            stored = _StoredStatements(topic_id, 0, lacks=False, last=None, statements=())
        self._lacks = stored.lacks
        with self._lock:
            self.topic_id, self._known, self._next = topic_id, stored.statements, stored.next_offset
            self._last = {} if stored.last is None else {PARTITION: stored.last}

    def _keep(self, source_statements: Iterable[SourceStatement], end: int) -> None:
        """Stores the newest statements and the next offset.

        If the connector sent a statement twice, its second record is kept, because the rows before that
        record were sent twice too.
        """
        last: dict[Any, SourceStatement] = {}
        for statement in source_statements:
            name = statement.ddl.table, statement.ddl.kind, statement.ddl.at
            last.pop(name, None)
            last[name] = statement
        times = {statement.ddl: statement.sent for statement in last.values()}
        newest = tuple(SourceStatement(ddl, times[ddl]) for ddl in newest_row_ddl(times))
        record = self._last.get(PARTITION)
        self._document.save(_StoredStatements(self.topic_id, end, self._lacks, record, newest))
        with self._lock:
            self._known, self._next = newest, end


def statements(message: Message, decode: Decode) -> Iterator[SourceStatement]:
    """Yields a record's statements that change rows or column names.

    Yields nothing if the record is part of a connector's snapshot.
    """
    for event in decode(message):
        if not isinstance(event, DdlEvent) or not event.query:
            continue
        source = (event.extension or {}).get("source")
        origin: Mapping[str, Any] = source if isinstance(source, Mapping) else {}
        if origin.get("snapshot") in _STREAMED:
            for change in _changes(event):
                row_ddl = RowDdl.of(change, event.query, moment=None, offset=message.offset)
                ddl = row_ddl._replace(place=_place(origin), seconds=int(origin.get("ts_ms") or 0) // 1000)
                yield SourceStatement(ddl, message.timestamp or 0)


def _changes(event: DdlEvent) -> tuple[RowChange, ...]:
    # A record about several tables names them all (``a,b``). A record about a database names no table, so the
    # statement may be about any table of the database.
    schema, names = event.table.schema, [name for name in event.table.name.split(",") if name]
    about = [TableId(schema, name) for name in names] or [TableId(schema, "")]
    effects = DdlEffects(event.query, schema, about=about[0])
    try:
        changes = (*effects.row_changes(), *_renames(effects), *_conversions(effects))
        if event.kind == _NO_CHANGES:
            changes = (*changes, *_replacements(effects))
    except ConfigError:
        changes = (RowChange(about[0], "unknown", NOT_UNDERSTOOD),)
    more = (
        change._replace(table=table) for change in changes if change.kind == "unknown" for table in about[1:]
    )
    return (*changes, *more)


def _renames(effects: DdlEffects) -> Iterator[RowChange]:
    """Yields a change of kind ``rename`` for each table of which the statement renames columns.

    It is yielded because the table's rows do not show whether a column was renamed or added.
    """
    names = dict[TableId, list[str]]()
    for rename in effects.renamed_columns():
        names.setdefault(rename.table, []).append(f"{rename.old} to {rename.new}")
    for table, turned in names.items():
        yield RowChange(table, "rename", _RENAMED.format(", ".join(turned)))


def _conversions(effects: DdlEffects) -> Iterator[RowChange]:
    """Yields a change of kind ``values`` for each table of which the statement redefines columns.

    The record does not contain the old definitions, so it is not known whether existing values changed.
    """
    names = dict[TableId, list[str]]()
    for table, column in effects.converted_columns():
        names.setdefault(table, []).append(column)
    for table, columns in names.items():
        yield RowChange(table, "values", _CONVERTED.format(", ".join(columns)))


def _replacements(effects: DdlEffects) -> Iterator[RowChange]:
    """Yields a change for each re-created table whose old columns the connector still uses.

    The connector reads columns from CREATE TABLE only if it does not know a table of this name. Otherwise
    ``tableChanges`` is empty in the record of the statement (Debezium 3.5.0.Final with MariaDB, seen with
    CREATE OR REPLACE TABLE).
    """
    for table in effects.made_tables():
        yield RowChange(table, "unknown", _OLD_COLUMNS)


def _place(source: Mapping[str, Any]) -> str:
    """Returns a statement's position in the server's log: its GTID, which is the same on a promoted replica.

    Without a GTID, the position is the binlog's file and offset.
    """
    return str(source.get("gtid") or f"{source.get('file')}:{source.get('pos')}")


def _without(topics: Mapping[str, Any], topic: str) -> dict[str, Any]:
    return {name: value for name, value in topics.items() if name != topic}
