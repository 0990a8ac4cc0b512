"""The ``canal-json`` codec: TiCDC's JSON envelope, classic (tiflow c7b2588) and new (ticdc b813e76).

Format, with ``protocol=canal-json``: a Kafka record's value is one JSON object, its key is null, and every
column value is text or null. A record's value may also have several objects, each ended by a newline (the
file format of TiCDC's cloud storage sink). Each object is an event. If a name occurs twice in an object, the
last one counts, as in Go and Spark.

Messages contain only short type names, without length or precision. Full types come from table definitions,
from the topic's own CREATE and ALTER events, or from a ``mysqlType`` with full types
(``content-compatible``). For other columns only the short type name is known.

Compressed values are recognised by their bytes. If TiCDC reduced a large row to its handle key
(``handle-key-only``, ``claim-check``), ``codecs.large_messages`` reads the missing columns. Events of tables
without a key are identified by TiDB's row key if the message contains it.

Decoding accepts deviations from the format that cannot change a value. ``envelope.CanalJsonSchema`` rejects
all deviations.

Encoded messages equal TiCDC's byte for byte, except for two things that are random in TiCDC's messages:
``ts``, which is the current time, and the order of the columns in ``mysqlType``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, cast

import orjson

from tidesink.codecs.base import ByIdentity, Codec, CodecParts, EncodedRecord, Keys, kept
from tidesink.codecs.canal_json.envelope import (
    OPS,
    Parsed,
    control_event,
    objects,
    other_dialects_named,
    timestamp,
)
from tidesink.codecs.canal_json.schema import RowShape, RowShapes, read_row
from tidesink.codecs.compression import compressed
from tidesink.codecs.large_messages import LargeMessages, is_cut_down
from tidesink.codecs.options import CanalJsonOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import ddl_moment, row_moment
from tidesink.errors import ConfigError, DecodeError, EncodeError, SchemaMismatchError
from tidesink.events import (
    ChangeEvent,
    DdlEvent,
    Event,
    Message,
    Op,
    Position,
    Row,
    TableSchema,
    Value,
    WatermarkEvent,
)
from tidesink.typemap.table import mysql_type_text, mysql_type_word, row_of, sql_type_code
from tidesink.typemap.target_schema import ROW_ID, TABLE_ID, RowKey, parse_row_key
from tidesink.typemap.values import text_writer

if TYPE_CHECKING:
    from tidesink.codecs.batch import Columnar, ValueOptions
    from tidesink.codecs.canal_json.columns import CanalJsonColumns


_KEPT_WRITERS = 256


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class CanalJsonCodec(Codec):
    """Decodes and encodes canal-json messages.

    ``definitions``: table definitions, which decoded and encoded DDL events change. ``keys``: key columns by
    table; the key of any other table is ``pkNames`` of each message. ``shapes``: finds the column types and
    the key of each row, instead of ``definitions`` and ``keys``; DDL events then change no definitions.
    ``clock``: returns the time for the member ``ts``, in ms since 1970. ``large``: reads the columns that
    large messages omit; by default it is created from the options. ``unread_ddl``: error texts of DDL events
    that could not be parsed, by their SQL text.
    """

    name = "canal-json"
    _options: CanalJsonOptions

    def __init__(
        self,
        *,
        options: CanalJsonOptions | None = None,
        definitions: TableDefinitions | None = None,
        keys: Keys | None = None,
        shapes: RowShapes | None = None,
        clock: Callable[[], int] = _now_ms,
        large: LargeMessages | None = None,
    ) -> None:
        options = self._options = options or CanalJsonOptions()
        self.definitions = definitions if definitions is not None else TableDefinitions()
        self.unread_ddl: dict[str, str] = {}
        self._shapes = shapes or RowShapes(self.definitions, keys, options.binary_text)
        self._large = large or LargeMessages(options)
        self._learns = shapes is None
        self._writer = CanalJsonWriter(options, clock, self._large)
        self._writers = ByIdentity(RowWriter, _KEPT_WRITERS)
        self._columns: CanalJsonColumns | None = None

    def decode(self, message: Message) -> tuple[Event, ...]:
        """Returns the events of one Kafka record, in the order in which the record contains them.

        Raises:
            DecodeError: The record cannot be decoded. The error's context has topic, partition and offset.
            SourceUnavailableError: The claim-check storage or the upstream database does not answer.
            ConfigError: The claim-check storage or the upstream database is configured incorrectly.
        """
        try:
            try:
                parsed: Parsed = orjson.loads(message.value)  # type: ignore[arg-type]  # None is refused
                op, extension = OPS[parsed["type"]], parsed.get("_tidb")
                # One complete row, as in nearly all messages.
                usual = parsed["isDdl"] is False and len(parsed["data"]) == 1
                if usual and (extension is None or len(extension) == 1):
                    return (self._row(parsed, op, message, 0),)
            except (KeyError, TypeError, ValueError):
                pass
            return tuple(self._events(message))
        except DecodeError as error:
            error.with_context(topic=message.topic, partition=message.partition, offset=message.offset)
            raise

    def _events(self, message: Message) -> list[Event]:
        events: list[Event] = []
        for parsed in objects(message.value, self._large):
            if _is_row(parsed):
                op = OPS[parsed["type"]]
                with other_dialects_named(parsed):
                    whole = self._whole(parsed)
                    for index, row in enumerate(_each_alone(whole, op), len(events)):
                        events.append(self._row(row, op, message, index))
                continue
            with other_dialects_named(parsed):
                event = control_event(parsed, parsed.get("type"), message, len(events))
            if isinstance(event, DdlEvent) and self._learns:
                self._learn(event)
            events.append(event)
        return events

    def _whole(self, parsed: Parsed) -> Parsed:
        """Returns a row change's message with all columns, including those that a large message omits."""
        extension = parsed.get("_tidb")
        if type(extension) is dict and len(extension) > 1 and is_cut_down(extension):
            key = self._shapes.wanted_key(parsed.get("database"), parsed.get("table"))
            return self._large.whole(parsed, key=key)
        return parsed

    def _row(self, parsed: Parsed, op: Op, message: Message, index: int) -> ChangeEvent:
        """Returns the change event of a parsed message with one row.

        This function is long because it runs once per row, and calls of further functions would be slow.
        """
        get = parsed.get
        extension, rows, es = get("_tidb"), get("data"), get("es")
        commit_ts = source = None
        if extension is not None:
            commit_ts = _commit_ts(extension)
            source = None if commit_ts is None else (commit_ts,)
        if type(rows) is not list or not rows:
            raise SchemaMismatchError("The row change has no rows. 'data' must be a list of objects.")
        old = _old_rows(parsed, rows)[0] if op is _UPDATE else None
        row = rows[0]
        if type(row) is not dict or not row:
            raise SchemaMismatchError(
                "The message's 'data' contains a row that is not a JSON object with columns."
            )
        shape = self._shapes.find(
            get("database"),
            get("table"),
            row,
            mysql_type=get("mysqlType"),
            pk_names=get("pkNames"),
            commit_ts=self._shapes.moment(es) if commit_ts is None else commit_ts,
        )
        values, only = read_row(row, shape), shape.only_key
        key = None if only is None else values.get(only)
        before = None if op is not _UPDATE else _before(old, values, shape)
        # Nothing needs to be kept in the extension if commit_ts determines ``es``.
        reported = commit_ts is not None and commit_ts >> 18 == es and len(extension) == 1  # type: ignore[arg-type]
        unreported = not reported or op is _UPDATE or shape.wire_types is not None
        return _event(
            (
                op,
                shape.table,
                shape.key_of(values) if key is None else {only: key},
                values if op is _DELETE else before,
                None if op is _DELETE else values,
                commit_ts,
                _position((message.topic, message.partition, message.offset, index, source)),
                shape.schema,
                None,
                _extension(parsed, commit_ts, shape, old) if unreported else None,
            )
        )

    def columnar(self, options: ValueOptions) -> Columnar:
        """Returns a function that decodes many records at once into Arrow columns."""
        from tidesink.codecs.canal_json.columns import CanalJsonColumns

        if self._columns is None:
            self._columns = CanalJsonColumns(self._shapes, self._large)
        return self._columns.step(options)

    def encode(self, event: Event, *, topic: str) -> EncodedRecord | None:
        """Returns the Kafka record of one event.

        Returns None for a watermark if the option ``enable_tidb_extension`` is off, because the message has
        the watermark in the TiDB extension. If a row change has no schema, its column types come from the
        table definitions and from ``extension["mysqlType"]``, which decoding sets.

        Raises:
            EncodeError: canal-json cannot represent this event. The error's context has the topic.
        """
        try:
            value = self._encode(event)
        except EncodeError as error:
            error.with_context(topic=topic)
            raise
        return None if value is None else EncodedRecord(None, value)

    def _encode(self, event: Event) -> bytes | None:
        if isinstance(event, ChangeEvent):
            schema = event.schema or self._schema_of(event)
            return self._writer.row(event, self._writers.get(schema, self._options.content_compatible))
        if isinstance(event, DdlEvent):
            self._learn(event)
            return self._writer.ddl(event)
        if isinstance(event, WatermarkEvent):
            return self._writer.watermark(event)
        raise EncodeError("canal-json has no message for Debezium's logical decoding messages.")

    def _learn(self, event: DdlEvent) -> None:
        try:
            since = ddl_moment(event.commit_ts, (event.extension or {}).get("es"))
            self.definitions.apply(event.query, event.table.schema, since=since, about=event.table)
        except ConfigError as error:
            self.unread_ddl[event.query] = error.message

    def _schema_of(self, event: ChangeEvent) -> TableSchema:
        """Returns a table schema for a row change whose event has no schema.

        It is made from the table's definition and from the type names in the event's extension.

        Raises:
            EncodeError: The table has no definition, and the event has no type names.
        """
        extension = event.extension or {}
        definition, mysql_type = self.definitions.get(event.table), extension.get("mysqlType")
        if definition is None and not mysql_type:
            raise EncodeError(
                "The event has no column types. Set the event's schema, pass a definition of the table, or "
                "keep the extension.mysqlType that decoding set.",
                table=str(event.table),
            )
        key = event.key or () if definition is None else (column.name for column in definition.primary_key)
        names = dict.fromkeys(name for row in (event.before, event.after) for name in row or ())
        return self._shapes.find(
            event.table.schema,
            event.table.name,
            names,
            mysql_type=mysql_type,
            pk_names=extension.get("pkNames", list(key)),
            commit_ts=row_moment(event.commit_ts, extension.get("es")),
        ).schema


# Looking up an enum's member for each row takes measurable time, so the members are bound here.
_UPDATE, _DELETE = Op.UPDATE, Op.DELETE

# Creating a named tuple from a tuple takes half the time of its constructor, which is measurable per row.
_event = cast("Callable[[tuple[object, ...]], ChangeEvent]", partial(tuple.__new__, ChangeEvent))
_position = cast("Callable[[tuple[object, ...]], Position]", partial(tuple.__new__, Position))


def _each_alone(parsed: Parsed, op: Op) -> Iterator[Parsed]:
    """Splits a message with several rows, as Alibaba's Canal sends it, into messages with one row each."""
    rows = parsed.get("data")
    if type(rows) is not list or len(rows) < 2:
        yield parsed
        return
    old = _old_rows(parsed, rows) if op is _UPDATE else [None] * len(rows)
    extension = parsed.get("_tidb")
    if type(extension) is dict and "rowkey" in extension:
        # A row key identifies one row, so it is dropped from a message with several rows.
        extension = {name: value for name, value in extension.items() if name != "rowkey"}
    for row, before in zip(rows, old, strict=True):
        yield {**parsed, "data": [row], "old": [before], "_tidb": extension}


def _is_row(parsed: Parsed) -> bool:
    kind = parsed.get("type")
    return type(kind) is str and kind in OPS and parsed.get("isDdl") is not True


def _old_rows(parsed: Parsed, rows: list[object]) -> list[object]:
    old = parsed.get("old")
    if type(old) is not list or len(old) != len(rows):
        raise SchemaMismatchError("An UPDATE must have one object in 'old' for each object in 'data'.")
    return old


def _before(old: object, after: Mapping[str, Value], shape: RowShape) -> dict[str, Value]:
    """Returns the row before an update.

    Its values are those in ``old``, and those in ``after`` for the columns that ``old`` does not contain.

    Raises:
        SchemaMismatchError: ``old`` is not an object, or it has a column that ``after`` does not have.
    """
    if type(old) is not dict:
        raise SchemaMismatchError("The message's 'old' contains a row that is not a JSON object.")
    unknown = old.keys() - after.keys()
    if unknown:
        raise SchemaMismatchError(
            "The message's 'old' has a column that its 'data' does not have.", column=sorted(unknown)[0]
        )
    values = shape.read(old)
    return values if len(values) == len(after) else {**after, **values}


def _commit_ts(extension: object) -> int | None:
    if type(extension) is not dict:
        raise SchemaMismatchError("The message's '_tidb' must be a JSON object.")
    value = extension.get("commitTs")
    if type(value) is int and value >= 0:  # the fast path, once per row
        return value
    return timestamp(extension, "commitTs")


def _extension(
    parsed: Parsed, commit_ts: int | None, shape: RowShape, old: object
) -> dict[str, object] | None:
    """Returns the members of a message that its event does not contain but encoding needs.

    They are stored as the event's extension, so that encoding the event writes the same message again.
    Returns None if there are no such members.
    """
    es, members = parsed.get("es"), parsed.get("_tidb")
    as_reported = es is None or (commit_ts is not None and commit_ts >> 18 == es)
    partial = old is not None and len(old) < len(shape.names)  # type: ignore[arg-type]  # was read as a row
    no_more = not members or (len(members) == 1 and "commitTs" in members)
    if as_reported and shape.wire_types is None and not partial and no_more:
        return None
    extension: dict[str, object] = {}
    if not as_reported:
        extension["es"] = kept(es, "es")
    if shape.wire_types is not None:
        extension["mysqlType"] = shape.wire_types
        extension["pkNames"] = shape.pk_names
    if partial:
        extension["old"] = list(old)  # type: ignore[call-overload]
    if members is not None and not no_more:
        rest = {name: value for name, value in members.items() if name != "commitTs"}
        extension["_tidb"] = kept(rest, "_tidb")
    return extension or None


def row_key_of(event: ChangeEvent) -> RowKey:
    """Returns TiDB's row key, which a canal-json event contains if TiCDC's option ``output-row-key`` is set.

    Raises:
        SchemaMismatchError: The event has no row key, or the row key of a table with a clustered key.
    """
    return parse_row_key(_tidb(event).get("rowkey"))


def keyed_by_row(event: ChangeEvent) -> ChangeEvent:
    """Returns the event with TiDB's row key as its key, and added as columns to the rows before and after it.

    Pipelines use it for tables without a key. An update does not change the row key, so both rows get the
    same row key.

    Raises:
        SchemaMismatchError: The event has no row key, or the row key of a table with a clustered key.
    """
    row_key = row_key_of(event)
    key: Row = {ROW_ID: row_key.row_id, TABLE_ID: row_key.table_id}
    before, after = (row if row is None else {**key, **row} for row in (event.before, event.after))
    return event._replace(key=key, before=before, after=after)


# Writing

# TiCDC adds this number of bytes to a value's size before it compares the size with max-message-bytes.
RECORD_OVERHEAD = 36
_KEPT_OBJECTS = 64
_ONLY_HANDLE_KEY = ',"onlyHandleKey":true'

# Go's HTML-safe escaping has these five short forms. It writes all other special characters as \uXXXX.
_SPECIAL = re.compile('[\x00-\x1f"\\\\<>&\u2028\u2029]')
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_ESCAPED = {c: _SHORT.get(c, f"\\u{ord(c):04x}") for c in [*map(chr, range(32)), *'"\\<>&\u2028\u2029']}


def json_text(text: str) -> str:
    """Returns a text as a JSON string literal, escaped as Go escapes it."""
    if _SPECIAL.search(text) is None:  # most texts
        return f'"{text}"'
    return '"' + _SPECIAL.sub(lambda match: _ESCAPED[match.group()], text) + '"'


class RowWriter:
    """Writes the parts of canal-json messages that depend on the schema of one table.

    ``full_types``: True to write column types with length and precision, False to write only their names.
    """

    def __init__(self, schema: TableSchema, full_types: bool) -> None:
        written = [column for column in schema.columns if not column.virtual]
        self._schema, self._full_types = schema, full_types
        self._columns = {c.name: (json_text(c.name), text_writer(c.type)) for c in written}
        # A column's code is None if it depends on the value.
        self._sql_codes = {
            c.name: None if row_of(c.type).sql_type_above else str(sql_type_code(c.type, None))
            for c in written
        }
        # Cached by a row's column names, which are the same in nearly all rows of a table.
        self._mysql_types: dict[tuple[str, ...], str] = {}
        self.pk_names = "[" + ",".join(json_text(column.name) for column in schema.primary_key) + "]"
        self.handle_names = frozenset(column.name for column in schema.handle_columns)

    def texts(self, row: Row) -> dict[str, str]:
        """Returns the row's values as JSON texts by column name, in the order of the table's columns.

        Raises:
            EncodeError: A value does not fit its column's type, or a column is not in the table's schema.
        """
        written: dict[str, str] = {}
        for name, (_, write) in self._columns.items():
            if name in row:
                value = row[name]
                try:
                    written[name] = "null" if value is None else json_text(write(value))
                except EncodeError as error:
                    error.with_context(column=name)
                    raise
        unknown = (
            [name for name in row if name not in self._schema.by_name] if len(written) < len(row) else []
        )
        if unknown:
            raise EncodeError(
                "The row has a column that is not in the event's schema. Add it to the schema.",
                column=unknown[0],
            )
        return written

    def object_of(self, texts: Mapping[str, str]) -> str:
        """Returns a JSON object with a member per column.

        ``texts``: the columns' values as JSON texts, by column name.
        """
        return "{" + ",".join(f"{self._columns[name][0]}:{text}" for name, text in texts.items()) + "}"

    def sql_types(self, row: Row, names: Iterable[str]) -> str:
        """Returns the member ``sqlType`` of a row's message: the JDBC type codes of the columns ``names``."""
        types = self._schema.by_name
        codes = {n: self._sql_codes[n] or str(sql_type_code(types[n].type, row.get(n))) for n in names}
        return self.object_of(codes)

    def mysql_types(self, names: Iterable[str]) -> str:
        """Returns the member ``mysqlType`` of a row's message: the type texts of the columns ``names``.

        Raises:
            EncodeError: Full types are required, but only the name of a column's type is known.
        """
        key = tuple(names)
        text = self._mysql_types.get(key)
        if text is None:
            if len(self._mysql_types) >= _KEPT_OBJECTS:
                self._mysql_types.clear()
            text = self.object_of({name: self._type_text(name) for name in key})
            self._mysql_types[key] = text
        return text

    def _type_text(self, name: str) -> str:
        column_type = self._schema.by_name[name].type
        text = mysql_type_text(column_type) if self._full_types else mysql_type_word(column_type)
        if text is None:
            raise EncodeError(
                "content-compatible needs the column's full type, but only the type name "
                f"{row_of(column_type).name} is known. Add a definition of the table.",
                column=name,
            )
        return json_text(text)


class CanalJsonWriter:
    """Writes the values of canal-json records: row changes, DDL events and watermarks.

    ``options``: TiCDC's options, which determine the format. ``clock``: returns the current time in ms since
    1970. ``large``: stores rows that are too large for Kafka in the claim-check storage.
    """

    def __init__(self, options: CanalJsonOptions, clock: Callable[[], int], large: LargeMessages) -> None:
        self._options = options
        self._clock = clock
        self._large = large

    def row(self, event: ChangeEvent, writer: RowWriter) -> bytes:
        """Returns the record value of one row change.

        Raises:
            EncodeError: canal-json cannot represent the event, or the message is too large.
        """
        value = self._sent(self._row(event, writer, cut=_as_decoded(event)))
        if self._fits(value):
            return value
        return self._cut_down(event, writer, value)

    def _row(self, event: ChangeEvent, writer: RowWriter, *, cut: str) -> bytes:
        """Returns the message of one row change.

        ``cut``: empty to write the complete row. Otherwise only the columns of the handle key are written,
        and ``cut`` is the JSON text of a member that is added to ``_tidb`` to mark the row as reduced.
        """
        row, old = _images(event)
        texts = writer.texts(row)
        deletes = event.op is Op.DELETE and self._options.delete_only_output_handle_key_columns
        if (cut or deletes) and writer.handle_names:
            texts = _only(texts, writer.handle_names)
        before = "null"
        if old is not None:
            sent = self._old(event, writer.texts(old), writer.texts(row))
            before = f"[{writer.object_of(_only(sent, texts) if cut else sent)}]"
        return self._message(
            event,
            kind=event.op.value.upper(),
            pk_names=writer.pk_names,
            body=f'"sqlType":{writer.sql_types(row, texts)},"mysqlType":{writer.mysql_types(texts)},'
            f'"old":{before},"data":[{writer.object_of(texts)}]',
            cut=cut,
        )

    def _cut_down(self, event: ChangeEvent, writer: RowWriter, whole: bytes) -> bytes:
        """Returns a message with only the row's handle key, because the complete message is too large.

        ``whole``: the complete message. With ``large-message-handle-option: claim-check`` it is written to
        the claim-check storage.

        Raises:
            EncodeError: The option is ``none``, the options or the table do not permit a reduced row, or the
                reduced row is still too large.
        """
        options = self._options
        if options.large_message_handle_option == "none":
            raise self._too_large(event, whole)
        if not options.enable_tidb_extension or not writer.handle_names:
            lacks = "a handle key" if options.enable_tidb_extension else "enable-tidb-extension"
            raise self._too_large(event, whole, f" {options.large_message_handle_option} needs {lacks}.")
        claims = self._large.claims if options.large_message_handle_option == "claim-check" else None
        if options.large_message_handle_option == "claim-check" and claims is None:
            raise self._too_large(event, whole, " claim-check needs claim-check-storage-uri.")
        location = claims.new_location() if claims else ""
        cut = f',"claimCheckLocation":{json_text(location)}' if claims else _ONLY_HANDLE_KEY
        value = self._sent(self._row(event, writer, cut=cut))
        if not self._fits(value):
            raise self._too_large(
                event, value, " It is too large even with only the columns of the row's handle key."
            )
        if claims:
            claims.store(location, whole)
        return value

    def _fits(self, value: bytes) -> bool:
        return len(value) + RECORD_OVERHEAD <= self._options.max_message_bytes

    def _too_large(self, event: ChangeEvent, value: bytes, more: str = "") -> EncodeError:
        return EncodeError(
            f"The message is too large: it has {len(value) + RECORD_OVERHEAD} bytes, max-message-bytes is "
            f"{self._options.max_message_bytes} and large-message-handle-option is "
            f"{self._options.large_message_handle_option}.{more}",
            table=str(event.table),
        )

    def _sent(self, value: bytes) -> bytes:
        return compressed(value, self._options.large_message_handle_compression)

    def _old(self, event: ChangeEvent, old: dict[str, str], new: Mapping[str, str]) -> dict[str, str]:
        sent = (event.extension or {}).get("old")
        if isinstance(sent, list):  # a decoded event records the columns of its old row
            return {name: text for name, text in old.items() if name in sent}
        if not (self._options.only_output_updated_columns or self._options.content_compatible):
            return old
        return {name: text for name, text in old.items() if new.get(name) != text}

    def ddl(self, event: DdlEvent) -> bytes:
        """Returns the record value of a DDL event."""
        value = self._message(
            event,
            kind=event.kind,
            pk_names="null",
            is_ddl="true",
            sql=event.query,
            body='"sqlType":null,"mysqlType":null,"data":null,"old":null',
        )
        return self._sent(value)

    def watermark(self, event: WatermarkEvent) -> bytes | None:
        """Returns the record value of a watermark, or None if ``enable_tidb_extension`` is off."""
        if not self._options.enable_tidb_extension:
            return None
        value = (
            '{"id":0,"database":"","table":"","pkNames":null,"isDdl":false,"type":"TIDB_WATERMARK",'
            f'"es":{event.commit_ts >> 18},"ts":{self._clock()},"sql":"","sqlType":null,"mysqlType":null,'
            f'"data":null,"old":null,"_tidb":{{"watermarkTs":{event.commit_ts}}}}}'
        ).encode()
        return self._sent(value)

    def _message(
        self,
        event: ChangeEvent | DdlEvent,
        *,
        kind: str,
        pk_names: str,
        body: str,
        is_ddl: str = "false",
        sql: str = "",
        cut: str = "",
    ) -> bytes:
        text = (
            f'{{"id":0,"database":{json_text(event.table.schema)},"table":{json_text(event.table.name)},'
            f'"pkNames":{pk_names},"isDdl":{is_ddl},"type":{json_text(kind)},"es":{_es(event)},'
            f'"ts":{self._clock()},"sql":{json_text(sql)},{body}{self._extension(event, cut)}}}'
        )
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            raise EncodeError(
                "A text contains half of a surrogate pair, which UTF-8 cannot represent. Correct the value."
            ) from error

    def _extension(self, event: ChangeEvent | DdlEvent, cut: str) -> str:
        if not self._options.enable_tidb_extension:
            return ""
        if event.commit_ts is None:
            raise EncodeError(
                "The event has no commit_ts, which the TiDB extension needs. Set enable-tidb-extension to "
                "false."
            )
        row_key = ""
        if self._options.output_row_key and isinstance(event, ChangeEvent):
            row_key = f',"rowkey":{json_text(_row_key(event))}'
        return f',"_tidb":{{"commitTs":{event.commit_ts}{cut}{row_key}}}'


def _only(texts: Mapping[str, str], names: Container[str]) -> dict[str, str]:
    return {name: text for name, text in texts.items() if name in names}


def _as_decoded(event: ChangeEvent) -> str:
    """Returns the JSON text of ``onlyHandleKey`` if the event was decoded from a delete with this member.

    Such a delete contains only the columns of the handle key, and is written in the same way again. For any
    other event the text is empty.
    """
    cut = event.op is Op.DELETE and _tidb(event).get("onlyHandleKey") is True
    return _ONLY_HANDLE_KEY if cut else ""


def _tidb(event: ChangeEvent) -> Mapping[str, object]:
    """Returns the members of ``_tidb`` that decoding stored in the event; empty if there are none."""
    members = (event.extension or {}).get("_tidb")
    return members if isinstance(members, Mapping) else {}


def _row_key(event: ChangeEvent) -> str:
    key = _tidb(event).get("rowkey")
    if not isinstance(key, str):
        raise EncodeError(
            "The event has no extension._tidb.rowkey, which output-row-key needs. Set output-row-key to "
            "false."
        )
    return key


def _es(event: ChangeEvent | DdlEvent) -> int:
    es = (event.extension or {}).get("es")
    if isinstance(es, int):
        return es
    if event.commit_ts is None:
        raise EncodeError(
            "The event has neither commit_ts nor extension.es, but canal-json needs a commit time. If TiCDC "
            "wrote the event, set enable-tidb-extension=true in the changefeed."
        )
    return event.commit_ts >> 18


def _images(event: ChangeEvent) -> tuple[Row, Row | None]:
    """Returns the rows to write as the members ``data`` and ``old``. None stands for a null ``old``.

    Raises:
        EncodeError: canal-json has no message for the operation, or the event lacks a row.
    """
    row = event.before if event.op is Op.DELETE else event.after
    if event.op not in (Op.INSERT, Op.UPDATE, Op.DELETE):
        raise EncodeError(f"canal-json has no message for {event.op.value!r} events.", table=str(event.table))
    if row is None or (event.op is Op.UPDATE and event.before is None):
        raise EncodeError(
            f"The {event.op.value} lacks a row. canal-json needs the new row of an insert, the old row of a "
            "delete, and both rows of an update.",
            table=str(event.table),
        )
    return row, event.before if event.op is Op.UPDATE else None


def open_canal_json(parts: CodecParts) -> Codec:
    """Returns a new codec for ``CODECS``."""
    options = CanalJsonOptions.of(parts.options)
    return CanalJsonCodec(options=options, definitions=parts.definitions, keys=parts.keys)
