"""The ``canal-json`` codec: TiCDC's JSON envelope, classic (tiflow c7b2588) and new (ticdc b813e76).

Format, with ``protocol=canal-json``: one JSON object in a Kafka record, key null, every value text or null.
Several objects in one value, each ended by a newline (the file form of cloud storage sinks), are several
events. A name that stands twice in an object counts as its last, as for Go and for Spark.

The wire carries short type words. Full types come from table definitions, from the topic's own CREATE and
ALTER events, which this codec reads as they pass, or from a content-compatible ``mysqlType``; a type that
stays unknown is as exact as its word allows.

A compressed value is recognised by its bytes. A row that was cut down to its handle key
(``handle-key-only``, ``claim-check``) is completed before it is read: ``codecs.large_messages``. Events of
tables without a key are identified by TiDB's row key where the message carries it.

Decoding is lenient where nothing can go wrong. ``CanalJsonSchema`` says whether a producer conforms to the
published JSON Schema of the envelope: TiCDC classic, its new architecture, and Alibaba's Canal (its
FlatMessage).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, cast

import orjson

from tidesink.codecs.base import ByIdentity, Codec, CodecOptions, EncodedRecord, kept
from tidesink.codecs.canal_json.encode import CanalJsonWriter, RowWriter, merged_names
from tidesink.codecs.canal_json.schema import Keys, RowShape, RowShapes, read_row
from tidesink.codecs.large_messages import LargeMessages, is_cut_down
from tidesink.ddl.catalog import TableDefinitions
from tidesink.ddl.history import ddl_moment, row_moment
from tidesink.errors import ConfigError, DecodeError, EncodeError, FramingError, SchemaMismatchError, shown
from tidesink.events import (
    ChangeEvent,
    DdlEvent,
    Event,
    Message,
    Op,
    Position,
    Row,
    TableId,
    TableSchema,
    Value,
    WatermarkEvent,
)
from tidesink.typemap.target_schema import ROW_ID, TABLE_ID, RowKey, parse_row_key

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

    from tidesink.codecs.batch import Columnar, ValueOptions
    from tidesink.codecs.canal_json.columns import CanalJsonColumns


_KEPT_WRITERS = 256


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class CanalJsonCodec(Codec):
    """Decodes and encodes canal-json.

    ``definitions`` grows by the DDL events that pass, in either direction. ``keys`` names the key of
    tables; without it ``pkNames`` does. ``shapes`` are given by who knows all types and keys beforehand: the
    DDL that passes changes none of them. ``clock`` gives ms since 1970 for ``ts``. ``large`` finds what
    messages leave out, by the options if it is not given. ``unread_ddl`` holds the DDL texts that could not
    be read for types, with the reason.
    """

    name = "canal-json"

    def __init__(
        self,
        *,
        options: CodecOptions | None = None,
        definitions: TableDefinitions | None = None,
        keys: Keys | None = None,
        shapes: RowShapes | None = None,
        clock: Callable[[], int] = _now_ms,
        large: LargeMessages | None = None,
    ) -> None:
        options = self._options = options or CodecOptions()
        self.definitions = definitions if definitions is not None else TableDefinitions()
        self.unread_ddl: dict[str, str] = {}
        self._shapes = shapes or RowShapes(self.definitions, keys)
        self._large = large or LargeMessages(options)
        self._learns = shapes is None
        self._writer = CanalJsonWriter(options, clock, self._large)
        self._full_types = options.content_compatible
        self._writers = ByIdentity(RowWriter, _KEPT_WRITERS)
        self._columns: CanalJsonColumns | None = None

    def decode(self, message: Message) -> tuple[Event, ...]:
        """The events of one Kafka record, in order.

        Raises:
            DecodeError: this record cannot be decoded; context has topic, partition, offset.
            SourceUnavailableError: claim-check storage or the upstream do not answer.
            ConfigError: one of them cannot be opened as it is configured.
        """
        try:
            try:
                parsed: Parsed = orjson.loads(message.value)  # type: ignore[arg-type]  # None is refused
                op, extension = _OPS[parsed["type"]], parsed.get("_tidb")
                # One row, of which nothing is elsewhere: nearly all messages.
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
        found: list[Event] = []
        for parsed in objects(message.value, self._large):
            if _is_row(parsed):
                op, whole = _OPS[parsed["type"]], self._whole(parsed)
                for at, one in enumerate(_each_alone(whole, op), len(found)):
                    found.append(self._row(one, op, message, at))
                continue
            event = _control(parsed, parsed.get("type"), message, len(found))
            if isinstance(event, DdlEvent) and self._learns:
                self._learn(event)
            found.append(event)
        return found

    def _whole(self, parsed: Parsed) -> Parsed:
        """A row's message with all its columns."""
        extension = parsed.get("_tidb")
        if type(extension) is dict and len(extension) > 1 and is_cut_down(extension):
            key = self._shapes.wanted_key(parsed.get("database"), parsed.get("table"))
            return self._large.whole(parsed, key=key)
        return parsed

    def _row(self, parsed: Parsed, op: Op, message: Message, index: int) -> ChangeEvent:
        """The event of a message with one row; one function, since it runs once a row."""
        get = parsed.get
        extension, rows, es = get("_tidb"), get("data"), get("es")
        commit_ts = source = None
        if extension is not None:
            commit_ts = _commit_ts(extension)
            source = None if commit_ts is None else (commit_ts,)
        if type(rows) is not list or not rows:
            raise SchemaMismatchError("a row change without rows: 'data' must be a list of objects")
        old = _old_rows(parsed, rows)[0] if op is _UPDATE else None
        row = rows[0]
        if type(row) is not dict or not row:
            raise SchemaMismatchError("a row in 'data' is no object with columns")
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
        # Where commit_ts says it all, there is nothing to keep beside the event.
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
        """The columnar step of one batch."""
        from tidesink.codecs.canal_json.columns import CanalJsonColumns

        if self._columns is None:
            self._columns = CanalJsonColumns(self._shapes, self._large)
        return self._columns.step(options)

    def encode(self, event: Event, *, topic: str) -> EncodedRecord | None:
        """The Kafka record of one event; None for a watermark without the TiDB extension.

        An event without a schema takes its types from the definitions and from
        ``extension["mysqlType"]``, as decoding put it there.

        Raises:
            EncodeError: canal-json cannot carry this event; context has the topic.
        """
        try:
            value = self._encode(event)
        except EncodeError as error:
            error.with_context(topic=topic)
            raise
        return None if value is None else EncodedRecord(None, value)

    def _encode(self, event: Event) -> bytes | None:
        if isinstance(event, ChangeEvent):
            return self._writer.row(event, self._row_writer(event.schema or self._schema_of(event)))
        if isinstance(event, DdlEvent):
            self._learn(event)
            return self._writer.ddl(event)
        if isinstance(event, WatermarkEvent):
            return self._writer.watermark(event)
        raise EncodeError("canal-json has no message for Debezium's logical decoding messages")

    def _learn(self, event: DdlEvent) -> None:
        try:
            since = ddl_moment(event.commit_ts, (event.extension or {}).get("es"))
            self.definitions.apply(event.query, event.table.schema, since=since)
        except ConfigError as error:
            self.unread_ddl[event.query] = error.message

    def _row_writer(self, schema: TableSchema) -> RowWriter:
        return self._writers.get(schema, self._full_types)

    def _schema_of(self, event: ChangeEvent) -> TableSchema:
        extension = event.extension or {}
        mysql_type = extension.get("mysqlType")
        pk_names = extension.get("pkNames", self._primary_key(event))
        names = merged_names(event.before, event.after)
        schema = self._shapes.find(
            event.table.schema,
            event.table.name,
            dict.fromkeys(names),
            mysql_type=mysql_type,
            pk_names=pk_names,
            commit_ts=row_moment(event.commit_ts, extension.get("es")),
        ).schema
        self._refuse_untyped(schema, mysql_type)
        return schema

    def _primary_key(self, event: ChangeEvent) -> list[str]:
        definition = self.definitions.get(event.table)
        if definition is None:
            return list(event.key or ())
        return [column.name for column in definition.primary_key]

    def _refuse_untyped(self, schema: TableSchema, mysql_type: object) -> None:
        if mysql_type or self.definitions.get(schema.table) is not None:
            return
        raise EncodeError(
            "the event has no column types: give a table definition, or keep extension.mysqlType",
            table=str(schema.table),
        )


_OPS = {"INSERT": Op.INSERT, "UPDATE": Op.UPDATE, "DELETE": Op.DELETE}
# Members of an enum are looked up again each time, which is felt a row.
_UPDATE, _DELETE = Op.UPDATE, Op.DELETE
_WATERMARK = "TIDB_WATERMARK"
Parsed = dict[str, Any]

# Named tuples made from a whole tuple: half the time of their constructors, which is felt a row.
_event = cast("Callable[[tuple[object, ...]], ChangeEvent]", partial(tuple.__new__, ChangeEvent))
_position = cast("Callable[[tuple[object, ...]], Position]", partial(tuple.__new__, Position))


def objects(value: bytes | None, large: LargeMessages) -> list[Parsed]:
    """The JSON objects of one record's value, compressed or not, as they were sent.

    Raises:
        DecodeError: no value, a damaged one, or no JSON object.
    """
    if not value:
        raise FramingError("the record has no value: canal-json never writes one without")
    try:
        return [_object(orjson.loads(value))]
    except orjson.JSONDecodeError:
        plain = large.plain(value)
    return _parsed(value if plain is None else plain)


def _parsed(value: bytes) -> list[Parsed]:
    try:
        return [_object(orjson.loads(value))]
    except orjson.JSONDecodeError as error:
        # Inside JSON text a newline is always escaped, so each bare one ends an object.
        lines = [line for line in value.split(b"\n") if line.strip()]
        try:
            if len(lines) > 1:
                return [_object(orjson.loads(line)) for line in lines]
        except orjson.JSONDecodeError:
            pass
        raise FramingError(f"the value is no JSON: {error}; is the topic's protocol canal-json?") from None


def _object(parsed: object) -> Parsed:
    if not isinstance(parsed, dict):
        raise SchemaMismatchError(f"expected a JSON object, not {type(parsed).__name__}")
    return parsed


def _each_alone(parsed: Parsed, op: Op) -> Iterator[Parsed]:
    """A message of several rows, which Alibaba's Canal sends, as messages of one."""
    rows = parsed.get("data")
    if type(rows) is not list or len(rows) < 2:
        yield parsed
        return
    old = _old_rows(parsed, rows) if op is _UPDATE else [None] * len(rows)
    extension = parsed.get("_tidb")
    if type(extension) is dict and "rowkey" in extension:
        # A row key names one row: of several in a message it would make one.
        extension = {name: value for name, value in extension.items() if name != "rowkey"}
    for row, before in zip(rows, old, strict=True):
        yield {**parsed, "data": [row], "old": [before], "_tidb": extension}


def _is_row(parsed: Parsed) -> bool:
    kind = parsed.get("type")
    return type(kind) is str and kind in _OPS and parsed.get("isDdl") is not True


def _old_rows(parsed: Parsed, rows: list[object]) -> list[object]:
    old = parsed.get("old")
    if type(old) is not list or len(old) != len(rows):
        raise SchemaMismatchError("an UPDATE needs in 'old' one object for each in 'data'")
    return old


def _before(old: object, after: Mapping[str, Value], shape: RowShape) -> dict[str, Value]:
    """The old row; the columns a partial one leaves out are unchanged."""
    if type(old) is not dict:
        raise SchemaMismatchError("a row in 'old' is no object")
    unknown = old.keys() - after.keys()
    if unknown:
        raise SchemaMismatchError("'old' has a column that 'data' has not", column=sorted(unknown)[0])
    values = shape.read(old)
    return values if len(values) == len(after) else {**after, **values}


def _commit_ts(extension: object) -> int | None:
    if type(extension) is not dict:
        raise SchemaMismatchError("'_tidb' must be an object")
    value = extension.get("commitTs")
    if type(value) is int and value >= 0:  # asked for each row
        return value
    return _timestamp(extension, "commitTs")


def _timestamp(extension: Mapping[str, object], member: str) -> int | None:
    value = extension.get(member)
    # orjson reads integers beyond 64 bits as floats, which are refused here with everything else.
    if value is not None and (type(value) is not int or value < 0):
        raise SchemaMismatchError(f"'_tidb.{member}' must be an unsigned integer, not {shown(value, 40)}")
    return value


def _extension(
    parsed: Parsed, commit_ts: int | None, shape: RowShape, old: object
) -> dict[str, object] | None:
    """What an encoder needs to write the message again and the event does not hold."""
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


def _control(parsed: Parsed, kind: object, message: Message, index: int) -> Event:
    if type(kind) is not str:
        raise SchemaMismatchError("the message has no 'type'")
    extension = parsed.get("_tidb")
    if extension is not None and type(extension) is not dict:
        raise SchemaMismatchError("'_tidb' must be an object")
    if kind == _WATERMARK:
        return _watermark(extension or {}, message, index)
    if parsed.get("isDdl") is not True or kind in _OPS:
        raise SchemaMismatchError(
            f"unknown message (type {shown(kind, 40)}, isDdl {shown(parsed.get('isDdl'), 40)}): "
            f"expected INSERT, UPDATE, DELETE, {_WATERMARK}, or a DDL"
        )
    return _ddl(parsed, kind, message, index)


def _watermark(extension: Mapping[str, object], message: Message, index: int) -> WatermarkEvent:
    watermark = _timestamp(extension, "watermarkTs")
    if watermark is None:
        raise SchemaMismatchError("a watermark without '_tidb.watermarkTs'")
    position = Position(message.topic, message.partition, message.offset, index, (watermark,))
    return WatermarkEvent(watermark, position)


def _ddl(parsed: Parsed, kind: str, message: Message, index: int) -> DdlEvent:
    database, name, query = (_text(parsed, member) for member in ("database", "table", "sql"))
    commit_ts = _timestamp(parsed.get("_tidb") or {}, "commitTs")
    source = None if commit_ts is None else (commit_ts,)
    position = Position(message.topic, message.partition, message.offset, index, source)
    es = kept(parsed.get("es"), "es")
    extension = {"es": es} if commit_ts is None and es is not None else None
    return DdlEvent(TableId(database, name), query, kind, commit_ts, position, extension)


def _text(parsed: Parsed, member: str) -> str:
    value = parsed.get(member)
    if type(value) is not str:
        raise SchemaMismatchError(f"a DDL message needs {member!r} as text")
    return value


def row_key_of(event: ChangeEvent) -> RowKey:
    """The row key that a canal-json event carries (``output-row-key``, new TiCDC).

    Raises:
        SchemaMismatchError: it carries none, or that of a table with a clustered key.
    """
    members = (event.extension or {}).get("_tidb")
    return parse_row_key(members.get("rowkey") if isinstance(members, Mapping) else None)


def keyed_by_row(event: ChangeEvent) -> ChangeEvent:
    """The event with its row key as key, and in both images: as workers keep tables without a key.

    An update never changes the row key, and its old row has the same one.

    Raises:
        SchemaMismatchError: as ``row_key_of``.
    """
    found = row_key_of(event)
    key: Row = {ROW_ID: found.row_id, TABLE_ID: found.table_id}
    before, after = (row if row is None else {**key, **row} for row in (event.before, event.after))
    return event._replace(key=key, before=before, after=after)


_FILE: Final = "canal-json.schema.json"
_PLAIN_NAME: Final = re.compile(r"\w+")


def canal_json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one canal-json object."""
    text = (files("tidesink.codecs") / "schemas" / _FILE).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


class CanalJsonSchema:
    """Checks messages against the schema; compressed ones are opened, claim-check files are not fetched."""

    def __init__(self, options: CodecOptions | None = None) -> None:
        self._large = LargeMessages(options or CodecOptions())

    def check(self, message: Message) -> None:
        """Nothing where the message has the form of canal-json.

        Raises:
            SchemaMismatchError: it has not; the reason has the JSON path of the first wrong member.
            FramingError: no JSON at all; context has topic, partition, offset.
        """
        try:
            for parsed in objects(message.value, self._large):
                self._check(parsed)
        except DecodeError as error:
            error.with_context(topic=message.topic, partition=message.partition, offset=message.offset)
            raise

    def _check(self, parsed: dict[str, Any]) -> None:
        from jsonschema.exceptions import best_match

        worst = best_match(self._validator.iter_errors(parsed))
        if worst is not None:
            raise SchemaMismatchError(f"{_path(worst)}: {_reason(worst)}, by {_FILE}")

    @cached_property
    def _validator(self) -> Draft202012Validator:
        from jsonschema import Draft202012Validator

        return Draft202012Validator(canal_json_schema())


def _path(error: ValidationError) -> str:
    """``$.data[0].id``; a name with other characters stands in quotes."""
    path = "$"
    for part in error.absolute_path:
        plain = f".{part}" if _PLAIN_NAME.fullmatch(str(part)) else f"[{shown(part)}]"
        path += f"[{part}]" if isinstance(part, int) else plain
    return path


def _reason(error: ValidationError) -> str:
    """What is wrong in our words: jsonschema's own quote the whole value, which may be a row."""
    keyword = str(error.validator)
    wanted: Any = error.validator_value
    value: Any = error.instance
    if keyword == "required":
        return f"{', '.join(repr(name) for name in wanted if name not in value)} is missing"
    if keyword == "additionalProperties" and isinstance(value, dict):
        known = canal_json_schema()["$defs"]["extension"]["properties"]  # the only closed object
        unknown = sorted(value.keys() - known.keys())
        return f"{', '.join(map(shown, unknown))} is unknown there"
    words = _WORDS.get(keyword, f"breaks the rule {keyword}")
    what = f"the {_KINDS[type(value)]} there" if isinstance(value, dict | list) else _json_text(value)
    return f"{what} {words.format(wanted=_listed(wanted))}"


def _json_text(value: Any) -> str:
    return shown(value) if isinstance(value, str) else json.dumps(value)


def _listed(wanted: Any) -> str:
    if isinstance(wanted, list):
        return " or ".join(map(str, wanted))
    return wanted if isinstance(wanted, str) else json.dumps(wanted)


_KINDS: Final[dict[type, str]] = {dict: "object", list: "array"}
_WORDS: Final = {
    "type": "is not of the type {wanted}",
    "enum": "is not one of {wanted}",
    "const": "must be {wanted}",
    "minLength": "is empty",
    "minItems": "is empty",
    "minimum": "is below {wanted}",
    "maximum": "is above {wanted}",
    "uniqueItems": "names a column twice",
}
