"""What a canal-json topic says of itself: its tables, and their definitions by its DDL events.

TiCDC writes DDL events to partition 0 alone (tiflow c7b2588, ticdc b813e76). They are read ahead of the
rows, up to partition 0's end, in pages: a row on another partition can be read before the ALTER that gave it
its columns. The state store remembers the definitions and how far they go; where it was lost, partition 0
is read again from its beginning.

Partition 0's log can be cut and grow again (``kafka.leader_epochs``), also behind what a table has applied.
So the last record that was read is remembered, and looked up under a new leader. DDL is then read again from
the cut. What was learned from behind it is dropped: partition 0 is read from its beginning if it held DDL.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson
import structlog

from tidesink.codecs.canal_json.scan import MarkedDdl, census, marked_ddl
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import ddl_moment, may_change_values
from tidesink.ddl.row_changes import (
    NOT_UNDERSTOOD,
    RowChange,
    RowDdl,
    altered_tables,
    moved_tables,
    named_by,
    renamed_columns,
    row_changes,
    shown_time,
    tables_made_like,
)
from tidesink.errors import ConfigError, SourceError, SourceUnavailableError, shown
from tidesink.events import Column, TableId, TableSchema, fold_name
from tidesink.sinks.batch.source import KafkaSource
from tidesink.sinks.kafka.fetch import last_record
from tidesink.sinks.kafka.leader_epochs import CheckedLogs, LeaderEpochs
from tidesink.sinks.kafka.offsets import OffsetRange, TopicOffsets, growing_parts, is_other_topic
from tidesink.sinks.state.progress import LastRecord, StateStore

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


DDL_PARTITION: Final = 0
_KIND: Final = "topic-ddl"
_SHOWN_SQL: Final = 200
# The newest are kept: a topic whose tables are made and dropped every day has ever new ones.
_MOST_WARNINGS: Final = 100
# Likewise for each name and kind: the newest is enough to wait for a person, and to empty the table.
_MOST_ROW_DDL: Final = 50
# And of all names: those of tables that came and went would fill the state store.
_MOST_OF_ALL_NAMES: Final = 5_000
# The DDL of one page, from all of its tasks together (each has a batch of records more), is collected to this
# process.
_PAGE_BYTES: Final = 64 << 20
# So few records are read by this process: a Spark job takes longer.
_FEW_RECORDS: Final = 1000

_REKEYED: Final = (
    "Rows of a table without a key get new row keys from this DDL on, and no event reports that. If the rows "
    "are identified by TiDB's row keys, load the table again."
)

_log = structlog.get_logger("tidesink.worker")


class DdlStatement(NamedTuple):
    """The SQL of a DDL event, the database it ran in, and the TSO from which it holds, if it has one.

    ``odd_time`` is its time if that is impossible. ``table`` is the one that the event names, if it names
    one, and ``offset`` the record's.
    """

    database: str
    sql: str
    since: int | None = None
    odd_time: str = ""
    table: str = ""
    offset: int = 0

    @property
    def about(self) -> TableId | None:
        """The table that the event names."""
        return TableId(self.database, self.table) if self.table else None


class DdlWarning(NamedTuple):
    """What a person should know of a DDL event.

    ``table`` is the one it is about (without a name: all of its schema), None for any. ``unreported``: a
    definition in the config makes it void.
    """

    text: str
    table: TableId | None = None
    unreported: bool = False

    def is_about(self, table: TableId) -> bool:
        """Whether it concerns this table."""
        return self.table is None or named_by(self.table, table)


class TopicTable(NamedTuple):
    """What DDL says of one table's columns, as ``TableDefinitions`` names it; names alone are folded."""

    current: TableSchema
    former: tuple[Column, ...]
    renamed: dict[str, str]
    reused: frozenset[str]
    readded: frozenset[str]
    partings: dict[str, str]
    renames: tuple[tuple[str, str], ...]


def reported_by(definitions: TableDefinitions, table: TableId) -> TopicTable | None:
    """What the definitions have of a table; None if they do not know it."""
    current = definitions.get(table)
    if current is None:
        return None
    readded = frozenset(fold_name(name) for known, name in definitions.readded() if known == table)
    return TopicTable(
        current,
        definitions.former(table),
        definitions.renamed(table),
        definitions.reused(table),
        readded,
        definitions.partings(table),
        definitions.renames(table),
    )


class _Known(NamedTuple):
    """What was learned of a topic.

    ``last``: the last record that was read, if it has a leader epoch. ``newest``: the offset of the last DDL
    event, -1 if there was none; None: an earlier version did not keep it.
    """

    definitions: TableDefinitions
    warnings: tuple[DdlWarning, ...] = ()
    rows: tuple[RowDdl, ...] = ()
    last: LastRecord | None = None
    newest: int | None = -1


class _Unread(NamedTuple):
    """What of partition 0 was not read yet, and what was known when that was found.

    ``stands``: what is in use. ``cut``: the log was cut at this offset or before it. Then what is learned
    again is used once all of it is read. ``changed``: a page of this read changed a definition.
    """

    part: OffsetRange
    known: _Known
    stands: _Known
    cut: int | None = None
    changed: bool = False


class _Page(NamedTuple):
    """The first statements of a range, the offset up to which they go, and the last record before it."""

    statements: list[DdlStatement]
    end: int
    last: LastRecord | None = None


class TopicDdl:
    """The definitions of one topic. Shared by the tasks of its tables."""

    def __init__(
        self,
        topic: str,
        *,
        pipeline: str,
        source: KafkaSource,
        store: StateStore,
        log: LeaderEpochs | None = None,
        ends_now: Callable[[TopicOffsets], TopicOffsets] | None = None,
    ) -> None:
        """``log`` notices that the log was cut; ``ends_now`` looks at the topic again."""
        self._topic = topic
        self._name = f"{pipeline}/{topic}"
        self._source = source
        self._store = store
        self._logs, self._ends_now = CheckedLogs(log), ends_now
        # Whether the last read was dropped, so that a look from before it is of no use.
        self._looks_again = False
        # One reads, whoever only asks what is known does not wait for it.
        self._reading = threading.Lock()
        self._failed: tuple[int, SourceError | None] = (0, None)
        self._lock = threading.Lock()
        self._known = _Known(TableDefinitions())
        self._topic_id: str | None = None
        self._next = 0
        # By table, of which rows which ones are about it: it is asked before each batch.
        self._about: dict[TableId, tuple[tuple[RowDdl, ...], tuple[RowDdl, ...]]] = {}

    def row_ddl(self, table: TableId) -> tuple[RowDdl, ...]:
        """The DDL read so far that changes rows of a table, in its order."""
        rows = self._known.rows
        known, found = self._about.get(table, (None, ()))
        if known is not rows:
            found = tuple(one for one in rows if one.concerns(table))
            self._about[table] = rows, found
        return found

    def warnings(self, table: TableId, *, defined: bool = False) -> tuple[str, ...]:
        """What to say at a table of the DDL read so far; ``defined``: the config has its definition."""
        about = [warning for warning in self._known.warnings if warning.is_about(table)]
        return tuple(warning.text for warning in about if not (defined and warning.unreported))

    def get(self, table: TableId) -> TableSchema | None:
        """A table as the topic's DDL has it so far."""
        with self._lock:
            return self._known.definitions.get(table)

    def former(self, table: TableId) -> tuple[Column, ...]:
        """Columns that a table of this name had and has no more."""
        with self._lock:
            return self._known.definitions.former(table)

    def reported(self, table: TableId) -> TopicTable | None:
        """All that the DDL says of a table so far, as of one moment; None where it names none."""
        with self._lock:
            return reported_by(self._known.definitions, table)

    def tables(self) -> tuple[TableId, ...]:
        """Every table the topic's DDL knows."""
        with self._lock:
            return tuple(self._known.definitions)

    def recall(self, found: TopicOffsets) -> None:
        """Restore what an earlier run read, and read nothing.

        Raises:
            StateStoreError: the store does not answer.
        """
        with self._lock:
            self._restore(found)

    def scan(self, session: SparkSession, found: TopicOffsets) -> bool:
        """Read DDL up to partition 0's end; True where a definition changed.

        Raises:
            SourceError: Kafka refuses, or does not answer: to all who waited for this read. Who asks then
                reads again. Or what is read never follows what was read before.
            SourceUnavailableError: the topic was made again while it was read, or a leader was elected. What
                was read is then not used.
            StateStoreError: what was read cannot be kept.
        """
        asked_at, _ = self._failed
        if self._left(found) is None and not self._is_in_doubt(found):
            return False
        with self._reading:
            failures, error = self._failed
            if self._looks_again and self._ends_now is not None:
                found = self._ends_now(found)
            unread = self._behind_cut(found) or self._left(found)
            if unread is None:
                return False
            if error is not None and failures != asked_at:
                # One after the other would wait as long as that read did.
                raise error
            while True:
                page = self._read_or_fail(session, unread.part)
                self._check_follows(found, unread.known.last, page.last)
                unread = self._take(page, found.topic_id, unread)
                if unread.part.records <= 0:
                    return unread.changed

    def rewind(self, found: TopicOffsets, offset: int) -> None:
        """Read again from an offset that a table goes back to; what is known already is known once.

        Raises:
            StateStoreError: it cannot be kept.
        """
        with self._reading, self._lock:
            self._restore(found)
            if offset < self._next:
                known = self._known._replace(last=None)
                self._save(self._topic_id or found.topic_id, known, offset)
                self._known, self._next = known, offset

    def define(self, found: TopicOffsets, statement: DdlStatement) -> None:
        """Take a CREATE TABLE that the topic does not have, as one that stands before what is read next.

        Raises:
            StateStoreError: it cannot be kept.
        """
        with self._reading:
            with self._lock:
                self._restore(found)
                end, known = self._next, self._known
                nothing = OffsetRange(self._topic, DDL_PARTITION, end, end)
                topic_id = self._topic_id or found.topic_id
            self._take(_Page([statement], end), topic_id, _Unread(nothing, known, known))

    def _left(self, found: TopicOffsets) -> _Unread | None:
        """What of partition 0 was not read yet."""
        at = found.partitions.get(DDL_PARTITION)
        with self._lock:
            self._restore(found)
            if at is None or at.latest <= self._next:
                return None
            part = OffsetRange(self._topic, DDL_PARTITION, max(self._next, at.earliest), at.latest)
            return _Unread(part, self._known, self._known)

    def _is_in_doubt(self, found: TopicOffsets) -> bool:
        """Whether the log is to be checked before it counts as read."""
        last = self._known.last
        return last is not None and self._logs.is_due(found, {DDL_PARTITION: last})

    def _behind_cut(self, found: TopicOffsets) -> _Unread | None:
        """What is to be read again of a log that was cut; None where it was not.

        Raises:
            SourceUnavailableError: no broker answers.
            SourceError: the brokers refuse us.
        """
        with self._lock:
            self._restore(found)
            known, next_offset = self._known, self._next
        at, last = found.partitions.get(DDL_PARTITION), known.last
        if at is None or last is None:
            return None
        cut = self._logs.cuts(found, {DDL_PARTITION: last}).get(DDL_PARTITION)
        if cut is not None:
            start = cut = min(cut, next_offset)
        elif at.latest > last.offset or found.leader_epochs.get(DDL_PARTITION, -1) <= last.epoch:
            return None
        else:
            # A later leader's log ends before a record of an earlier one. Nobody knows since where it has
            # other records.
            start, cut = 0, at.latest
        held_ddl = known.newest is None or known.newest >= start
        if held_ddl and at.earliest == 0:
            start, learned = 0, _Known(TableDefinitions())
        elif held_ddl:
            # Of definitions nothing can be taken back; what changes rows says where it was read.
            rows = tuple(one for one in known.rows if one.offset < cut)
            learned = known._replace(rows=rows, last=None, newest=None)
        else:
            learned = known._replace(last=None)
        start = max(start, at.earliest)
        part = OffsetRange(self._topic, DDL_PARTITION, start, max(start, at.latest))
        _log.warning("DDL is read again, since the log was cut", topic=self._topic, cut=cut, start=start)
        return _Unread(part, learned, known, cut=cut)

    def _check_follows(self, found: TopicOffsets, known: LastRecord | None, read: LastRecord | None) -> None:
        """Raise unless a page is of a log that has what was read before it."""
        before, after = ({} if one is None else {DDL_PARTITION: one} for one in (known, read))
        try:
            self._looks_again = not self._logs.follows(found, before, after)
        except SourceError:
            # A person has the tables go on; then DDL is read from the beginning, whatever its epochs.
            with self._lock:
                self._known, self._next = self._known._replace(last=None), 0
            raise
        if self._looks_again:
            raise SourceUnavailableError(
                "A leader of the partition was elected while the topic's DDL was read. That DDL is "
                "discarded, and the topic is looked at again.",
                topic=self._topic,
                partition=DDL_PARTITION,
            )

    def _read_or_fail(self, session: SparkSession, part: OffsetRange) -> _Page:
        try:
            return self._read(session, part)
        except SourceError as exc:
            self._failed = self._failed[0] + 1, exc
            raise

    def _take(self, page: _Page, topic_id: str, unread: _Unread) -> _Unread:
        """Follow the statements of a page, which nobody else does meanwhile; what is left then."""
        before = unread.known
        definitions = TableDefinitions.from_json(before.definitions.to_json())
        version = definitions.version
        new = applied(definitions, page.statements, self._topic)
        warnings = tuple(dict.fromkeys((*before.warnings, *new)))[-_MOST_WARNINGS:]
        newest = max((one.offset for one in page.statements), default=-1)
        known = _Known(
            definitions,
            warnings,
            with_rows(before.rows, page.statements),
            page.last or before.last,
            None if before.newest is None else max(before.newest, newest),
        )
        left = unread.part._replace(start=page.end)
        if unread.cut is not None:
            if left.records > 0:
                # Nobody sees the half of what is learned again, nor does the store: the cut is found again.
                return unread._replace(part=left, known=known)
            lost = _lost(unread.stands, known, unread.cut)
            known = known._replace(warnings=(*warnings, *lost)[-_MOST_WARNINGS:])
        with self._lock:
            if self._known.definitions is not unread.stands.definitions:
                raise SourceUnavailableError(
                    "The topic was deleted and created again while its DDL was read. That DDL is discarded, "
                    "and the topic is read again.",
                    topic=self._topic,
                )
            # Stored before it is used here: a scan that is retried begins where this one did.
            self._save(topic_id, known, page.end)
            self._known, self._next = known, page.end
        for warning in known.warnings:
            if warning not in unread.stands.warnings:
                _log.warning("DDL to check", topic=self._topic, warning=warning.text)
        changed = unread.changed or unread.cut is not None or definitions.version != version
        return _Unread(left, known, known, changed=changed)

    def _restore(self, found: TopicOffsets) -> None:
        if self._topic_id is not None and not is_other_topic(self._topic_id, found.topic_id):
            self._topic_id = found.topic_id or self._topic_id
            return
        kept: Any = self._store.load_document(_KIND, self._name)
        self._topic_id, self._next, self._known = found.topic_id, 0, _Known(TableDefinitions())
        if kept is None or is_other_topic(kept["topic_id"], found.topic_id):
            return
        self._topic_id = found.topic_id or kept["topic_id"]
        if kept.get("timed") or self._is_cut(found):
            self._next = int(kept["next_offset"])
            self._known = _Known(
                TableDefinitions.from_json(kept["definitions"]),
                tuple(_warning(*one) for one in kept.get("warnings", ())),
                # What an earlier version passed over it did not keep, and stays passed over.
                tuple(row_ddl_of(*one) for one in kept.get("rows", ())),
                LastRecord(*kept["last"]) if kept.get("last") else None,
                kept.get("newest"),
            )

    @staticmethod
    def _is_cut(found: TopicOffsets) -> bool:
        """Whether DDL events have expired: then definitions without their times are better than none."""
        at = found.partitions.get(DDL_PARTITION)
        return at is not None and at.earliest > 0

    def _save(self, topic_id: str, known: _Known, next_offset: int) -> None:
        document = {
            "topic_id": topic_id,
            "next_offset": next_offset,
            # Versions before this one did not keep when a definition came to hold.
            "timed": True,
            "definitions": known.definitions.to_json(),
            "warnings": [list(warning) for warning in known.warnings],
            "rows": [list(one) for one in known.rows],
            "last": known.last,
            "newest": known.newest,
        }
        self._store.save_document(_KIND, self._name, document)

    def _read(self, session: SparkSession, part: OffsetRange) -> _Page:
        """A page: the first statements of the range, and the offset up to which they go."""
        if part.records <= 0:
            return _Page([], part.end)
        statements, last = list[DdlStatement](), None
        for found, record in self._marked(session, part):
            statements += filter(None, map(_statement, found.values, found.offsets, found.times))
            last = record or last
            if found.end is not None:
                # What later tasks found comes after what this one left.
                return _Page(statements, found.end, last)
        return _Page(statements, part.end, last)

    def _marked(self, session: SparkSession, part: OffsetRange) -> list[tuple[MarkedDdl, LastRecord | None]]:
        if part.records <= _FEW_RECORDS:
            return [_marked_page(_PAGE_BYTES, self._source.read_here([part]))]
        most = _PAGE_BYTES // session.sparkContext.defaultParallelism
        return self._source.ask(session, [part], partial(_marked_page, most))


def _marked_page(most_bytes: int, records: Iterator[pa.RecordBatch]) -> tuple[MarkedDdl, LastRecord | None]:
    """As ``marked_ddl``, with the last record before its end, if it has a leader epoch."""
    last = list[LastRecord]()

    def noted() -> Iterator[pa.RecordBatch]:
        for batch in records:
            if (record := last_record(batch)) is not None:
                last.append(record)
            yield batch

    found = marked_ddl(most_bytes, noted())
    before = [one for one in last if found.end is None or one.offset < found.end]
    return found, before[-1] if before else None


_LOST: Final = (
    "The topic's log was cut at offset {} or earlier, and DDL after the cut is lost. Compare the table with "
    "its source (tidesink diff), and repair it with tidesink resync."
)


def _lost(known: _Known, again: _Known, cut: int) -> Iterator[DdlWarning]:
    """What to say of DDL that a cut log lacks: to all tables, and to those whose rows it changed."""
    text, there = _LOST.format(cut), {(one.table, one.kind, one.at) for one in again.rows}
    if known.newest is not None and known.newest >= cut:
        yield DdlWarning(text)
    for one in known.rows:
        if (one.table, one.kind, one.at) not in there:
            yield DdlWarning(f"{text} Statement: {one.statement[:_SHOWN_SQL]}", one.table)


def _warning(text: str, table: list[str] | None, unreported: bool) -> DdlWarning:
    return DdlWarning(text, None if table is None else TableId(*table), unreported)


def row_ddl_of(table: list[str], kind: Any, *parts: Any) -> RowDdl:
    """A statement as it was kept in a document."""
    return RowDdl(TableId(*table), kind, *parts)


def with_rows(known: Sequence[RowDdl], statements: Iterable[DdlStatement]) -> tuple[RowDdl, ...]:
    """DDL that changes rows, and that among the statements; one that was sent again is there once."""
    found = {(one.table, one.kind, one.at): one for one in known}
    for statement in statements:
        for change in _row_changes(statement):
            one = RowDdl.of(
                change,
                statement.sql,
                moment=statement.since,
                offset=statement.offset,
                odd_time=statement.odd_time,
            )
            found.setdefault((one.table, one.kind, one.at), one)
    return newest_row_ddl(found.values())


def newest_row_ddl(found: Iterable[RowDdl]) -> tuple[RowDdl, ...]:
    """The newest of some statements: so many of each table and kind, and of all."""
    count, kept = Counter[tuple[TableId, str]](), list[RowDdl]()
    for one in reversed([*found]):
        count[one.table, one.kind] += 1
        if count[one.table, one.kind] <= _MOST_ROW_DDL:
            kept.append(one)
    return tuple(reversed(kept[:_MOST_OF_ALL_NAMES]))


def _row_changes(statement: DdlStatement) -> tuple[RowChange, ...]:
    about = statement.about
    try:
        return row_changes(statement.sql, statement.database, about=about)
    except ConfigError:
        return (RowChange(about or TableId(statement.database, ""), "unknown", NOT_UNDERSTOOD),)


def applied(
    definitions: TableDefinitions, statements: Iterable[DdlStatement], topic: str
) -> Iterator[DdlWarning]:
    """Apply the statements to the definitions; gives the warnings of each, as it is applied."""
    for statement in statements:
        for warning in _applied(definitions, statement, topic):
            yield warning._replace(text=f"{warning.text} Statement: {statement.sql[:_SHOWN_SQL]}")


def _applied(definitions: TableDefinitions, statement: DdlStatement, topic: str) -> Iterator[DdlWarning]:
    readded = definitions.readded()
    try:
        about = statement.about
        row_changes(statement.sql, statement.database, about=about)  # one that cannot be read changes nothing
        for table, old, new in renamed_columns(statement.sql, statement.database):
            yield DdlWarning(_RENAMED.format(old=old, new=new), table)
        for table in moved_tables(statement.sql, statement.database):
            named = [table] if table.schema else [one for one in definitions if named_by(table, one)]
            known = [definitions.get(one) for one in named]
            if not known or not all(one is not None and one.handle_columns for one in known):
                yield DdlWarning(_REKEYED, table)
        altered = altered_tables(statement.sql, statement.database)
        if statement.odd_time:
            yield from (_untimed(table, statement.odd_time) for table in altered)
        unreported = [table for table in altered if table not in definitions]
        made_like = tables_made_like(statement.sql, statement.database)
        before = {table: definitions.get(table) for table in altered}
        definitions.apply(statement.sql, statement.database, since=statement.since, about=about)
    except ConfigError as exc:
        yield DdlWarning(f"A DDL event of topic {topic} cannot be read ({exc.message}).", statement.about)
        return
    for table in unreported:
        if table not in definitions:
            yield _unreported(table)
    for table in altered:
        yield from _converted(before[table], definitions.get(table))
    for table in made_like:
        if table not in definitions:
            yield DdlWarning(_UNLIKE.format(table), table, unreported=True)
    for table, column in sorted(definitions.readded() - readded):
        yield DdlWarning(
            f"Not applied: column {column} was dropped and added again. Rows written before keep their old "
            "values of it in the target.",
            table,
        )


_RENAMED: Final = (
    "Not applied: column {old} was renamed to {new}. If the target has {old}, old values stay in it."
)


_CONVERTED: Final = (
    "The type of column {} changed from {} to {}. Values that do not fit the new type were rounded or cut at "
    "the source, and are unchanged in the target (tidesink resync brings them)."
)


def _converted(before: TableSchema | None, now: TableSchema | None) -> Iterator[DdlWarning]:
    """Columns whose new type does not hold all values of the old one."""
    if before is None or now is None:
        return
    known = {column.column_id: column for column in before.columns}
    for column in now.columns:
        was = known.get(column.column_id)
        if was is not None and may_change_values(column.type, was.type):
            words = (one.type.sql or one.type.name for one in (was, column))
            yield DdlWarning(_CONVERTED.format(column.name, *words), now.table)


_UNLIKE: Final = (
    "{} was created like a table whose columns are not known, or whose database depends on the session. So "
    "its types and defaults are not known. Add a definition under tables."
)


def _untimed(table: TableId, time: str) -> DdlWarning:
    return DdlWarning(
        f"The DDL of {table} has an impossible time ({time}), which is ignored. Rows from before the DDL are "
        "read with the types after it. Check that the producer's es is in milliseconds.",
        table,
        unreported=True,
    )


def _unreported(table: TableId) -> DdlWarning:
    return DdlWarning(
        f"The DDL changes {table}, whose definition is not known, so its types and defaults are not used. "
        "Add a definition under tables.",
        table,
        unreported=True,
    )


def _statement(value: bytes, offset: int = 0, sent: int | None = None) -> DdlStatement | None:
    """The statement of a DDL event; None for any other record. ``sent``: Kafka's time, in ms since 1970."""
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
    said = commit_ts if type(commit_ts) is int else None
    since = ddl_moment(said, es, sent)
    odd_time = "" if since is not None else _odd_time(commit_ts, es)
    if since is None and sent and ddl_moment(said, es) is not None:
        odd_time = f"{odd_time} of a record that was sent at {shown_time(sent)}"
    database, table = (name if isinstance(name, str) else "" for name in (database, table))
    return DdlStatement(database, sql, since, odd_time, table, offset)


def _odd_time(commit_ts: object, es: object) -> str:
    reported = {"commitTs": commit_ts, "es": es}
    # 0 means none, like a missing one.
    return ", ".join(
        f"{name} {shown(value, 40)}" for name, value in reported.items() if value not in (None, 0)
    )


# In a status's details: the table's topic was not there yet.
TOPIC_ABSENT: Final = "topic-absent"
_TABLES_KIND: Final = "topic-tables"
# How many records of a new topic are read at first; the tasks find tables that come later.
_FIRST_RECORDS: Final = 20_000


class TopicTables:
    """The tables of one topic that are known. Shared by the tasks of its tables."""

    def __init__(self, topic: str, *, pipeline: str, source: KafkaSource, store: StateStore) -> None:
        self._topic = topic
        self._name = f"{pipeline}/{topic}"
        self._source = source
        self._store = store
        self._lock = threading.Lock()
        self._tables: dict[TableId, None] = {}
        self._loaded = False
        self._looked_at: str | None = None
        self._looked: dict[int, int] = {}
        # Tables that the topic had no record of when it was read to its end.
        self.unmet: set[TableId] = set()
        # The topic is not there yet.
        self.absent = False

    def known(self) -> tuple[TableId, ...]:
        """The tables met so far, in this run or an earlier one.

        Raises:
            StateStoreError: the store does not answer.
        """
        with self._lock:
            if not self._loaded:
                kept = self._store.load_document(_TABLES_KIND, self._name) or []
                self._tables.update((TableId(*table), None) for table in kept)
                self._loaded = True
            return tuple(self._tables)

    def add(self, tables: Iterable[TableId]) -> None:
        """Take note of tables.

        Raises:
            StateStoreError: the store does not answer.
        """
        new = [table for table in tables if table not in self.known()]
        if new:
            with self._lock:
                # Stored before it is known here: nobody reports a table again that is known already.
                tables = self._tables | dict.fromkeys(new)
                self._store.save_document(_TABLES_KIND, self._name, [list(table) for table in tables])
                self._tables = tables
                self.unmet.difference_update(new)

    def look(
        self,
        session: SparkSession,
        found: TopicOffsets,
        *,
        goes_on: Callable[[], bool],
        read: Mapping[int, int] | None = None,
    ) -> bool:
        """Look for tables; False where ``goes_on`` said no before that was done: the next call goes on.

        If no table is known, the topic is read until a row names one: tasks find the others as they read.
        ``read``: no task reads on, so the topic is read to its end from these offsets, up to which tasks have
        read it.

        Raises:
            SourceError: Kafka refuses, or does not answer.
            StateStoreError: the store does not answer.
            ConfigError: no record names a table, since the records are compressed and the config does not
                say so.
        """
        for part in growing_parts(self._unlooked(found, read or {}), _FIRST_RECORDS):
            if self.known() and read is None:
                break
            self.census(session, part)
            self._looked.update((one.partition, one.end) for one in part)
            if not goes_on():
                return False
        return True

    def looked_up_to(self, found: TopicOffsets) -> Mapping[int, int]:
        """The offsets before which ``look`` leaves no table of a topic unknown."""
        return dict(self._looked) if self._looked_at == found.topic_id else {}

    def _unlooked(self, found: TopicOffsets, read: Mapping[int, int]) -> list[OffsetRange]:
        if is_other_topic(self._looked_at or found.topic_id, found.topic_id):
            self._looked = {}
        self._looked_at = found.topic_id
        ends = found.partitions.items()
        starts = {n: max(at.earliest, self._looked.get(n, 0), read.get(n, 0)) for n, at in ends}
        return [OffsetRange(self._topic, n, min(starts[n], at.latest), at.latest) for n, at in ends]

    def census(self, session: SparkSession, ranges: Sequence[OffsetRange]) -> None:
        """Take note of every table with a row in the ranges.

        Raises: as ``look``.
        """
        if not any(part.records for part in ranges):
            return
        if sum(part.records for part in ranges) <= _FEW_RECORDS:
            found = [census(self._source.read_here(ranges))]
        else:
            found = self._source.ask(session, ranges, census)
        tables = frozenset[TableId]().union(*(one.tables for one in found))
        kind = next((one.compression for one in found if one.compression != "none"), "none")
        if kind != "none" and not (tables or self.known()):
            raise ConfigError(
                f"No record names a table, and the records are compressed ({kind}). Set "
                f"source.large-message-handle-compression: {kind}, as in the changefeed.",
                topic=self._topic,
            )
        self.add(sorted(tables))
