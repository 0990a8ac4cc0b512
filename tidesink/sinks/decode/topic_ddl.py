"""The DDL log of a canal-json topic, the table definitions that come from it, and the topic's tables.

All tables of the topic ask one log (``TopicDdl``). It reads each DDL event once, and
``topic_statements.learn`` parses it once.

TiCDC writes DDL events only to partition 0 (tiflow c7b2588, ticdc b813e76). Before rows are read, the DDL in
partition 0 is read up to the partition's current end, one page at a time. Otherwise a row in another
partition could be read before the ALTER that added its columns. The state store has the definitions and the
offset up to which DDL was read. If it is lost, partition 0 is read again from its beginning.

Kafka can lose the end of partition 0's log, and new records then get the same offsets
(``kafka.leader_epochs``). This can even happen at offsets that a table has applied. So the last record that
was read is stored, and is compared with the log after a change of leader. If the log was cut, DDL is read
again from the cut. If records after the cut had DDL, the definitions may be wrong, so partition 0 is read
again from its beginning.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson
import structlog

from tidesink.codecs.canal_json.scan import MarkedDdl, census, marked_ddl
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import ddl_moment
from tidesink.ddl.row_changes import RowDdl, shown_time
from tidesink.ddl.topic_statements import SHOWN_SQL, DdlStatement, DdlWarning, learn, with_rows
from tidesink.errors import ConfigError, SourceError, SourceUnavailableError, shown
from tidesink.events import Column, TableId, TableSchema, fold_name
from tidesink.sinks.kafka.fetch import last_record
from tidesink.sinks.kafka.leader_epochs import CheckedLogs, LeaderEpochs
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets, growing_parts, is_other_topic
from tidesink.sinks.kafka.topic_reader import TopicReader
from tidesink.sinks.state.documents import DocumentKind, DocumentStore
from tidesink.sinks.state.progress import LastRecord

if TYPE_CHECKING:
    import pyarrow as pa


DDL_PARTITION: Final = 0
# The number of newest warnings that are stored. A topic whose tables are created and dropped every day always
# has new warnings.
_MOST_WARNINGS: Final = 100
# The maximum size of a page of DDL. This process collects it from all tasks. Each task needs memory for a
# batch of records in addition.
_PAGE_BYTES: Final = 64 << 20
# Up to this number of records, this process reads them itself, because a Spark job would be slower.
_FEW_RECORDS: Final = 1000


class DdlPages(NamedTuple):
    """The limits of reading a topic's DDL.

    ``most_bytes``: the maximum size of a page of DDL. ``few_records``: up to this number of records, this
    process reads them itself. More records are read by tasks (``TopicReader.ask``).
    """

    most_bytes: int = _PAGE_BYTES
    few_records: int = _FEW_RECORDS


_PAGES: Final = DdlPages()

_log = structlog.get_logger("tidesink.worker")


class TopicTable(NamedTuple):
    """A table's columns as defined by DDL.

    Attributes:
        current: The table with its current columns.
        dropped_columns: Dropped columns with the types that they had.
        renamed: New names of renamed columns by old names, newest first.
        reused: Folded names that several columns had, one after the other.
        readded: Folded names of columns that were dropped and added again.
        removals: For each folded name that a column lost by a drop or a rename, the last such DDL, identified
            as in ``Renamed.at``.
        renames: Pairs of an old name and a later name of the same column, including dropped columns.
    """

    current: TableSchema
    dropped_columns: tuple[Column, ...]
    renamed: dict[str, str]
    reused: frozenset[str]
    readded: frozenset[str]
    removals: dict[str, str]
    renames: tuple[tuple[str, str], ...]


def reported_by(definitions: TableDefinitions, table: TableId) -> TopicTable | None:
    """Returns a table's columns according to ``definitions``, or None if the table is not defined there."""
    current = definitions.get(table)
    if current is None:
        return None
    readded = frozenset(
        fold_name(name) for readded_table, name in definitions.readded() if readded_table == table
    )
    return TopicTable(
        current,
        definitions.dropped_columns(table),
        definitions.renamed(table),
        definitions.reused(table),
        readded,
        definitions.removals(table),
        definitions.renames(table),
    )


class _Known(NamedTuple):
    """Everything that was learned from a topic's DDL so far.

    ``definitions``: the tables. ``warnings``: warnings for the user. ``rows``: statements that change
    existing rows. ``last``: the last record that was read, if it has a leader epoch. ``newest``: the offset
    of the last DDL event, -1 without DDL events, or None if it is not known after the log was cut.
    """

    definitions: TableDefinitions
    warnings: tuple[DdlWarning, ...] = ()
    rows: tuple[RowDdl, ...] = ()
    last: LastRecord | None = None
    newest: int | None = -1


@dataclass(frozen=True)
class _StoredTopicDdl:
    """What was learned from a topic's DDL, in the state store.

    ``topic_id``: Kafka's id of the topic. ``next_offset``: the offset up to which DDL was read. ``timed``:
    always True, because definitions have the times from which they are in effect. ``definitions``: the tables
    as JSON text (``TableDefinitions.to_json``). The other members are those of ``_Known``.
    """

    topic_id: str
    next_offset: int
    timed: bool
    definitions: str
    warnings: tuple[DdlWarning, ...]
    rows: tuple[RowDdl, ...]
    last: LastRecord | None
    newest: int | None


_TOPIC_DDL: Final = DocumentKind("topic-ddl", _StoredTopicDdl)


class _Unread(NamedTuple):
    """The part of partition 0 that is still to be read.

    Attributes:
        part: The range to read.
        known: What was learned from the records before this range.
        stands: What the tables use until this read is complete.
        cut: If the log was cut: the offset of the cut, or a higher offset. Then tables use what is learned
            only after the whole range is read. None: the log was not cut.
        changed: True if a page of this read has changed a definition.
    """

    part: OffsetRange
    known: _Known
    stands: _Known
    cut: int | None = None
    changed: bool = False


class _Page(NamedTuple):
    """The DDL statements in the first part of a range of partition 0.

    ``end``: the offset at which this part ends. ``last``: the last record before ``end``, if it has a leader
    epoch.
    """

    statements: list[DdlStatement]
    end: int
    last: LastRecord | None = None


def _logged(topic: str, warning: DdlWarning) -> None:
    _log.warning("DDL to check", topic=topic, warning=warning.text)


class TopicDdl:
    """The table definitions of one topic. All tables of the topic share the object."""

    def __init__(
        self,
        topic: str,
        *,
        pipeline: str,
        store: DocumentStore,
        log: LeaderEpochs | None = None,
        ends_now: Callable[[TopicOffsets], TopicOffsets] | None = None,
        pages: DdlPages = _PAGES,
        tell: Callable[[str, DdlWarning], None] = _logged,
    ) -> None:
        """Creates the object. Nothing is read yet.

        ``log``: detects whether Kafka lost the end of the log. None: this is not checked. ``ends_now``: looks
        up the topic's current offsets, or None. ``pages``: the limits of reading DDL. ``tell``:
        called with the topic and each new warning.
        """
        self._topic = topic
        self._document = _TOPIC_DDL.of(store, pipeline, topic)
        self._logs, self._ends_now = CheckedLogs(log), ends_now
        self._pages = pages
        self._tell = tell
        # True if the records of the last read were discarded. The topic must be looked up again before the
        # next read.
        self._looks_again = False
        # Only one thread reads DDL. A thread that only needs the known state does not wait for this lock.
        self._reading = threading.Lock()
        self._failed: tuple[int, SourceError | None] = (0, None)
        self._lock = threading.Lock()
        self._known = _Known(TableDefinitions())
        self._topic_id: str | None = None
        self._next = 0
        # A cache for ``row_ddl``, which is called before each batch. By table: the statements of all tables
        # when the cache was filled, and those of this table.
        self._about: dict[TableId, tuple[tuple[RowDdl, ...], tuple[RowDdl, ...]]] = {}

    def row_ddl(self, table: TableId) -> tuple[RowDdl, ...]:
        """Returns the statements read so far that change existing rows of a table, in the topic's order."""
        rows = self._known.rows
        previous, statements = self._about.get(table, (None, ()))
        if previous is not rows:
            statements = tuple(ddl for ddl in rows if ddl.concerns(table))
            self._about[table] = rows, statements
        return statements

    def warnings(self, table: TableId, *, defined: bool = False) -> tuple[str, ...]:
        """Returns the warnings about a table from the DDL read so far.

        ``defined``: True if the config defines the table. Then warnings that its definition is not known are
        left out.
        """
        about = [warning for warning in self._known.warnings if warning.is_about(table)]
        return tuple(warning.text for warning in about if not (defined and warning.unreported))

    def get(self, table: TableId) -> TableSchema | None:
        """Returns a table's definition by the DDL read so far, or None if it is not defined there."""
        with self._lock:
            return self._known.definitions.get(table)

    def dropped_columns(self, table: TableId) -> tuple[Column, ...]:
        """Returns the columns that DDL dropped from a table, with the types that they had."""
        with self._lock:
            return self._known.definitions.dropped_columns(table)

    def reported(self, table: TableId) -> TopicTable | None:
        """Returns a table's columns as defined by the DDL read so far, or None.

        All members are from the same state of the DDL.
        """
        with self._lock:
            return reported_by(self._known.definitions, table)

    def tables(self) -> tuple[TableId, ...]:
        """Returns all tables that the DDL read so far defines."""
        with self._lock:
            return tuple(self._known.definitions)

    def recall(self, topic_offsets: TopicOffsets) -> None:
        """Loads the state of an earlier run from the state store, without reading the topic.

        Raises:
            StateStoreError: The state store does not answer.
        """
        with self._lock:
            self._restore(topic_offsets)

    def scan(self, reader: TopicReader, topic_offsets: TopicOffsets) -> bool:
        """Reads DDL up to partition 0's end. Returns True if a definition changed.

        Raises:
            SourceError: Kafka refuses the request, or does not answer. All calls that wait for this read
                raise the same error, and the next call reads again. Or the log was cut, and can never contain
                the records that were read before.
            SourceUnavailableError: While partition 0 was read, the topic was created again, or a new leader
                was elected. The records of this read are discarded.
            StateStoreError: The new state cannot be stored.
        """
        asked_at, _ = self._failed
        if self._left(topic_offsets) is None and not self._may_be_cut(topic_offsets):
            return False
        with self._reading:
            failures, error = self._failed
            if self._looks_again and self._ends_now is not None:
                topic_offsets = self._ends_now(topic_offsets)
            unread = self._behind_cut(topic_offsets) or self._left(topic_offsets)
            if unread is None:
                return False
            if error is not None and failures != asked_at:
                # Otherwise each waiting call would try the slow read again, one after the other.
                raise error
            while True:
                page = self._read_or_fail(reader, unread.part)
                self._check_follows(topic_offsets, unread.known.last, page.last)
                unread = self._take(page, topic_offsets.topic_id, unread)
                if unread.part.records <= 0:
                    return unread.changed

    def rewind(self, topic_offsets: TopicOffsets, offset: int) -> None:
        """Sets the next offset to read back to ``offset``, because a table is rewound to it.

        Statements that are already known are not recorded a second time.

        Raises:
            StateStoreError: The new offset cannot be stored.
        """
        with self._reading, self._lock:
            self._restore(topic_offsets)
            if offset < self._next:
                state = self._known._replace(last=None)
                self._save(self._topic_id or topic_offsets.topic_id, state, offset)
                self._known, self._next = state, offset

    def define(self, topic_offsets: TopicOffsets, statement: DdlStatement) -> None:
        """Applies a CREATE TABLE that is not in the topic, as if it had been read just now.

        Raises:
            StateStoreError: The new definition cannot be stored.
        """
        with self._reading:
            with self._lock:
                self._restore(topic_offsets)
                end, state = self._next, self._known
                nothing = OffsetRange(self._topic, DDL_PARTITION, end, end)
                topic_id = self._topic_id or topic_offsets.topic_id
            self._take(_Page([statement], end), topic_id, _Unread(nothing, state, state))

    def _left(self, topic_offsets: TopicOffsets) -> _Unread | None:
        """Returns the part of partition 0 that is still to be read, or None if all of it was read."""
        partition_offsets = topic_offsets.partitions.get(DDL_PARTITION)
        with self._lock:
            self._restore(topic_offsets)
            if partition_offsets is None or partition_offsets.latest <= self._next:
                return None
            part = OffsetRange(
                self._topic,
                DDL_PARTITION,
                max(self._next, partition_offsets.earliest),
                partition_offsets.latest,
            )
            return _Unread(part, self._known, self._known)

    def _may_be_cut(self, found: TopicOffsets) -> bool:
        """Returns True if Kafka may have cut the log of partition 0. Then it is checked even without new
        records.
        """
        last = self._known.last
        return last is not None and self._logs.is_due(found, {DDL_PARTITION: last})

    def _behind_cut(self, topic_offsets: TopicOffsets) -> _Unread | None:
        """Returns the range of partition 0 to read again if the partition's log was cut; None if it was not
        cut.

        Raises:
            SourceUnavailableError: No broker answers.
            SourceError: The brokers refuse the request.
        """
        with self._lock:
            self._restore(topic_offsets)
            state, next_offset = self._known, self._next
        partition_offsets, last = topic_offsets.partitions.get(DDL_PARTITION), state.last
        if partition_offsets is None or last is None:
            return None
        cut = self._logs.cuts(topic_offsets, {DDL_PARTITION: last}).get(DDL_PARTITION)
        if cut is not None:
            start = cut = min(cut, next_offset)
        elif (
            partition_offsets.latest > last.offset
            or topic_offsets.leader_epochs.get(DDL_PARTITION, -1) <= last.epoch
        ):
            return None
        else:
            # The log of the new leader ends before a record that was read from the previous leader. It is not
            # known from which offset on the records differ.
            start, cut = 0, partition_offsets.latest
        held_ddl = state.newest is None or state.newest >= start
        if held_ddl and partition_offsets.earliest == 0:
            start, learned = 0, _Known(TableDefinitions())
        elif held_ddl:
            # Retention deleted the beginning of the log, so definitions cannot be built again. They are kept.
            # Statements that change rows are kept up to the cut, because their offsets are known.
            rows = tuple(ddl for ddl in state.rows if ddl.offset < cut)
            learned = state._replace(rows=rows, last=None, newest=None)
        else:
            learned = state._replace(last=None)
        start = max(start, partition_offsets.earliest)
        part = OffsetRange(self._topic, DDL_PARTITION, start, max(start, partition_offsets.latest))
        _log.warning("DDL is read again, since the log was cut", topic=self._topic, cut=cut, start=start)
        return _Unread(part, learned, state, cut=cut)

    def _check_follows(
        self, topic_offsets: TopicOffsets, previous: LastRecord | None, read: LastRecord | None
    ) -> None:
        """Checks that the log of a page contains the records that were read before.

        ``previous``: the last record before the page. ``read``: the last record of the page.

        Raises:
            SourceError: The log was cut, and can never contain these records.
            SourceUnavailableError: A new leader was elected while the page was read. The page must be read
                again.
        """
        before, after = ({} if record is None else {DDL_PARTITION: record} for record in (previous, read))
        try:
            self._looks_again = not self._logs.follows(topic_offsets, before, after)
        except SourceError:
            # The tables stop until a person lets them continue. Then DDL is read again from the beginning,
            # without comparing leader epochs.
            with self._lock:
                self._known, self._next = self._known._replace(last=None), 0
            raise
        if self._looks_again:
            raise SourceUnavailableError(
                "A new leader of the partition was elected while the topic's DDL was read. The DDL of this "
                "read is discarded, and the topic is looked up and read again.",
                topic=self._topic,
                partition=DDL_PARTITION,
            )

    def _read_or_fail(self, reader: TopicReader, part: OffsetRange) -> _Page:
        try:
            return self._read(reader, part)
        except SourceError as exc:
            self._failed = self._failed[0] + 1, exc
            raise

    def _take(self, page: _Page, topic_id: str, unread: _Unread) -> _Unread:
        """Applies the statements of a page to the definitions, and stores the new state.

        Returns the part that is still to be read.

        The caller holds the reading lock.
        """
        before = unread.known
        definitions = TableDefinitions.from_json(before.definitions.to_json())
        version = definitions.version
        learned = learn(definitions, page.statements, self._topic)
        warnings = tuple(dict.fromkeys((*before.warnings, *learned.warnings)))[-_MOST_WARNINGS:]
        newest = max((statement.offset for statement in page.statements), default=-1)
        state = _Known(
            definitions,
            warnings,
            with_rows(before.rows, learned.rows),
            page.last or before.last,
            None if before.newest is None else max(before.newest, newest),
        )
        left = unread.part._replace(start=page.end)
        if unread.cut is not None:
            if left.records > 0:
                # A state without the DDL of the remaining pages is neither used nor stored. After a restart
                # the cut is detected again.
                return unread._replace(part=left, known=state)
            lost = _lost(unread.stands, state, unread.cut)
            state = state._replace(warnings=(*warnings, *lost)[-_MOST_WARNINGS:])
        with self._lock:
            if self._known.definitions is not unread.stands.definitions:
                raise SourceUnavailableError(
                    "The topic was deleted and created again while its DDL was read. The DDL of this read is "
                    "discarded, and the new topic is read.",
                    topic=self._topic,
                )
            # Stored before it is used: if storing fails, the next scan begins at the same offset.
            self._save(topic_id, state, page.end)
            self._known, self._next = state, page.end
        for warning in state.warnings:
            if warning not in unread.stands.warnings:
                self._tell(self._topic, warning)
        changed = unread.changed or unread.cut is not None or definitions.version != version
        return _Unread(left, state, state, changed=changed)

    def _restore(self, topic_offsets: TopicOffsets) -> None:
        if self._topic_id is not None and not is_other_topic(self._topic_id, topic_offsets.topic_id):
            self._topic_id = topic_offsets.topic_id or self._topic_id
            return
        stored = self._document.load()
        self._topic_id, self._next, self._known = topic_offsets.topic_id, 0, _Known(TableDefinitions())
        if stored is None or is_other_topic(stored.topic_id, topic_offsets.topic_id):
            return
        self._topic_id, self._next = topic_offsets.topic_id or stored.topic_id, stored.next_offset
        definitions = TableDefinitions.from_json(stored.definitions)
        self._known = _Known(definitions, stored.warnings, stored.rows, stored.last, stored.newest)

    def _save(self, topic_id: str, state: _Known, next_offset: int) -> None:
        self._document.save(
            _StoredTopicDdl(
                topic_id=topic_id,
                next_offset=next_offset,
                timed=True,
                definitions=state.definitions.to_json(),
                warnings=state.warnings,
                rows=state.rows,
                last=state.last,
                newest=state.newest,
            )
        )

    def _read(self, reader: TopicReader, part: OffsetRange) -> _Page:
        """Reads the first page of a range of partition 0: its DDL statements, and the offset up to which it
        was read.
        """
        if part.records <= 0:
            return _Page([], part.end)
        statements, last = list[DdlStatement](), None
        for marked, record in self._marked(reader, part):
            statements += filter(None, map(ddl_statement, marked.values, marked.offsets, marked.times))
            last = record or last
            if marked.end is not None:
                # This task stopped before the end of its part, so the results of later tasks are not used.
                return _Page(statements, marked.end, last)
        return _Page(statements, part.end, last)

    def _marked(self, reader: TopicReader, part: OffsetRange) -> list[tuple[MarkedDdl, LastRecord | None]]:
        if part.records <= self._pages.few_records:
            return [_marked_page(self._pages.most_bytes, reader.read_here([part]))]
        most = self._pages.most_bytes // reader.tasks
        return reader.ask([part], partial(_marked_page, most))


def ddl_statement(value: bytes, offset: int = 0, sent: int | None = None) -> DdlStatement | None:
    """Returns the statement of a DDL event, or None if ``value`` is not a DDL event with a statement.

    ``sent``: Kafka's timestamp of the record in ms since 1970, or None.
    """
    try:
        message = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(message, dict) or message.get("isDdl") is not True:
        return None
    sql, database, table, extension = (message.get(name) for name in ("sql", "database", "table", "_tidb"))
    if not isinstance(sql, str):
        return None
    commit_ts, es = (extension.get("commitTs") if isinstance(extension, dict) else None), message.get("es")
    valid_commit_ts = commit_ts if type(commit_ts) is int else None
    since = ddl_moment(valid_commit_ts, es, sent)
    odd_time = "" if since is not None else _odd_time(commit_ts, es)
    if since is None and sent and ddl_moment(valid_commit_ts, es) is not None:
        odd_time = f"{odd_time} of a record that was sent at {shown_time(sent)}"
    database, table = (name if isinstance(name, str) else "" for name in (database, table))
    return DdlStatement(database, sql, since, odd_time, table, offset)


def _odd_time(commit_ts: object, es: object) -> str:
    reported = {"commitTs": commit_ts, "es": es}
    # 0 means that there is no time.
    return ", ".join(
        f"{name} {shown(value, 40)}" for name, value in reported.items() if value not in (None, 0)
    )


def _marked_page(most_bytes: int, records: Iterator[pa.RecordBatch]) -> tuple[MarkedDdl, LastRecord | None]:
    """Returns the DDL events in the records of a page, and the last record before the page's end.

    The last record is None if no record has a leader epoch.
    """
    last = list[LastRecord]()

    def noted() -> Iterator[pa.RecordBatch]:
        for batch in records:
            if (record := last_record(batch)) is not None:
                last.append(record)
            yield batch

    marked = marked_ddl(most_bytes, noted())
    before = [candidate for candidate in last if marked.end is None or candidate.offset < marked.end]
    return marked, before[-1] if before else None


_LOST: Final = (
    "Kafka lost records of the topic, at the latest from offset {} on. The DDL in these records is lost. "
    "Compare the table with its source (`tidesink diff`), and repair it with `tidesink resync TABLE`."
)


def _lost(state: _Known, again: _Known, cut: int) -> Iterator[DdlWarning]:
    """Yields warnings about DDL that was lost when the log was cut.

    If any DDL was after the cut, one warning is about all tables. In addition, there is a warning about each
    lost statement that changed rows of a table.

    Args:
        state: The state before the log was read again.
        again: The state after it was read again.
        cut: The offset of the cut, or a higher offset.
    """
    text, there = _LOST.format(cut), {(ddl.table, ddl.kind, ddl.at) for ddl in again.rows}
    if state.newest is not None and state.newest >= cut:
        yield DdlWarning(text)
    for ddl in state.rows:
        if (ddl.table, ddl.kind, ddl.at) not in there:
            yield DdlWarning(f"{text} Statement: {ddl.statement[:SHOWN_SQL]}", ddl.table)


# A key in the details of a table's status: True if the table's topic does not exist yet.
TOPIC_ABSENT: Final = "topic-absent"
_TOPIC_TABLES: Final = DocumentKind("topic-tables", tuple[TableId, ...])
# The number of records that are read first to find the tables of a new topic.
_FIRST_RECORDS: Final = 20_000


class TopicTables:
    """The known tables of one topic. All tables of the topic share the object."""

    def __init__(self, topic: str, *, pipeline: str, store: DocumentStore) -> None:
        self._topic = topic
        self._document = _TOPIC_TABLES.of(store, pipeline, topic)
        self._lock = threading.Lock()
        self._tables: dict[TableId, None] = {}
        self._loaded = False
        self._looked_at: str | None = None
        self._looked: dict[int, int] = {}
        # Tables that had no records when the topic was read to its end.
        self.unmet: set[TableId] = set()
        # True if the topic does not exist yet.
        self.absent = False

    def known(self) -> tuple[TableId, ...]:
        """Returns the tables that were found in the topic so far, also in earlier runs.

        Raises:
            StateStoreError: The state store does not answer.
        """
        with self._lock:
            if not self._loaded:
                self._tables.update(dict.fromkeys(self._document.load() or ()))
                self._loaded = True
            return tuple(self._tables)

    def add(self, tables: Iterable[TableId]) -> None:
        """Records that the topic has records of these tables, and stores that in the state store.

        Raises:
            StateStoreError: The state store does not answer.
        """
        new = [table for table in tables if table not in self.known()]
        if new:
            with self._lock:
                # The tables are stored before they count as known, because known tables are not stored again.
                tables = self._tables | dict.fromkeys(new)
                self._document.save(tuple(tables))
                self._tables = tables
                self.unmet.difference_update(new)

    def look(
        self,
        reader: TopicReader,
        topic_offsets: TopicOffsets,
        *,
        goes_on: Callable[[], bool],
        read: Mapping[int, int] | None = None,
    ) -> bool:
        """Looks for tables in the topic.

        If no table is known yet, the topic is read until a row names a table. The tables' own tasks find the
        other tables while they read the topic.

        Args:
            reader: Reads the topic.
            topic_offsets: The topic's current offsets.
            goes_on: Returns False if the search should pause. The next call continues it.
            read: If no task reads the topic any longer: the offsets up to which tasks have read it. The rest
                of the topic is searched up to its end. None: tasks still read the topic.

        Returns:
            False if ``goes_on`` returned False before the search was complete.

        Raises:
            SourceError: Kafka refuses the request, or does not answer.
            StateStoreError: The state store does not answer.
            ConfigError: No record names a table, because the records are compressed and the config does not
                set the compression.
        """
        for part in growing_parts(self._unlooked(topic_offsets, read or {}), _FIRST_RECORDS):
            if self.known() and read is None:
                break
            self.census(reader, part)
            self._looked.update((offset_range.partition, offset_range.end) for offset_range in part)
            if not goes_on():
                return False
        return True

    def looked_up_to(self, topic_offsets: TopicOffsets) -> Mapping[int, int]:
        """Returns the offsets up to which ``look`` has searched the topic.

        All tables with earlier records are known.
        """
        return dict(self._looked) if self._looked_at == topic_offsets.topic_id else {}

    def _unlooked(self, topic_offsets: TopicOffsets, read: Mapping[int, int]) -> list[OffsetRange]:
        if is_other_topic(self._looked_at or topic_offsets.topic_id, topic_offsets.topic_id):
            self._looked = {}
        self._looked_at = topic_offsets.topic_id
        ends = topic_offsets.partitions.items()
        starts = {n: max(offsets.earliest, self._looked.get(n, 0), read.get(n, 0)) for n, offsets in ends}
        return [
            OffsetRange(self._topic, n, min(starts[n], offsets.latest), offsets.latest) for n, offsets in ends
        ]

    def census(self, reader: TopicReader, ranges: Sequence[OffsetRange]) -> None:
        """Adds every table that has a row in the ranges.

        Raises:
            SourceError, StateStoreError, ConfigError: For the same reasons as ``look``.
        """
        if not any(part.records for part in ranges):
            return
        if sum(part.records for part in ranges) <= _FEW_RECORDS:
            answers = [census(reader.read_here(ranges))]
        else:
            answers = reader.ask(ranges, census)
        tables = frozenset[TableId]().union(*(answer.tables for answer in answers))
        kind = next((answer.compression for answer in answers if answer.compression != "none"), "none")
        if kind != "none" and not (tables or self.known()):
            raise ConfigError(
                f"No record names a table, and the records are compressed ({kind}). Set "
                f"source.large-message-handle-compression: {kind}, as in the changefeed.",
                topic=self._topic,
            )
        self.add(sorted(tables))
