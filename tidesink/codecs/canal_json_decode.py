"""canal-json bytes to events.

Format: TiCDC (tiflow c7b2588) and its new architecture (ticdc b813e76), ``protocol=canal-json``: one
JSON object a Kafka record, key null, every value text or null. Several objects in one value, each
ended by a newline (the file form of cloud storage sinks), are several events. A name that stands twice
in an object counts as its last, as for Go and for Spark.

A compressed value is told by its bytes, and a row that was cut down to its handle key (``handle-key-only``,
``claim-check``) is made whole before it is read: ``large_messages``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

import orjson

from tidesink.codecs.canal_json_shape import RowShape, RowShapes, read_row
from tidesink.codecs.large_messages import LargeMessages, is_cut_down
from tidesink.codecs.nesting import kept
from tidesink.errors import DecodeError, FramingError, SchemaMismatchError, shown
from tidesink.events import (
    ChangeEvent,
    DdlEvent,
    Event,
    Message,
    Op,
    Position,
    TableId,
    Value,
    WatermarkEvent,
)

_OPS = {"INSERT": Op.INSERT, "UPDATE": Op.UPDATE, "DELETE": Op.DELETE}
# Members of an enum are looked up anew each time, which is felt a row.
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
    except orjson.JSONDecodeError as error:
        plain = large.plain(value)
        return _several(value, error) if plain is None else _opened(plain)


def _opened(plain: bytes) -> list[Parsed]:
    try:
        return [_object(orjson.loads(plain))]
    except orjson.JSONDecodeError as error:
        return _several(plain, error)


def _several(value: bytes, error: orjson.JSONDecodeError) -> list[Parsed]:
    # Inside JSON text a newline is always escaped, so each bare one ends an object.
    lines = [line for line in value.split(b"\n") if line.strip()]
    if len(lines) < 2:
        raise _no_json(error) from None
    try:
        return [_object(orjson.loads(line)) for line in lines]
    except orjson.JSONDecodeError:
        raise _no_json(error) from None


def _no_json(error: orjson.JSONDecodeError) -> FramingError:
    return FramingError(f"the value is no JSON: {error}; is the topic's protocol canal-json?")


def _object(parsed: object) -> Parsed:
    if not isinstance(parsed, dict):
        raise SchemaMismatchError(f"expected a JSON object, not {type(parsed).__name__}")
    return parsed


class CanalJsonReader:
    """Makes events of canal-json records; ``learn`` is told of each DDL, before the rows after it.

    ``large`` makes compressed messages and rows that were cut down whole.
    """

    def __init__(self, shapes: RowShapes, learn: Callable[[DdlEvent], None], large: LargeMessages) -> None:
        self._shapes = shapes
        self._learn = learn
        self._large = large

    def objects(self, value: bytes | None) -> list[Parsed]:
        """The JSON objects of one record's value, each row with all its columns.

        Raises:
            DecodeError: the value is none of canal-json, or a row's columns are not to be had.
            SourceUnavailableError: claim-check storage or upstream do not answer.
        """
        found = objects(value, self._large)
        for at, parsed in enumerate(found):
            extension = parsed.get("_tidb")
            if type(extension) is dict and len(extension) > 1 and is_cut_down(extension) and _is_row(parsed):
                key = self._shapes.wanted_key(parsed.get("database"), parsed.get("table"))
                found[at] = self._large.whole(parsed, key=key)
        return found

    def events(self, message: Message) -> tuple[Event, ...]:
        """All events of one record.

        Raises:
            DecodeError: this record cannot be decoded; context has topic, partition, offset.
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
            return self._all(message)
        except DecodeError as error:
            error.with_context(topic=message.topic, partition=message.partition, offset=message.offset)
            raise

    def _all(self, message: Message) -> tuple[Event, ...]:
        found: list[Event] = []
        for parsed in self.objects(message.value):
            self.read(parsed, message, found)
        return tuple(found)

    def read(self, parsed: Parsed, message: Message, found: list[Event]) -> None:
        """Add the events of one whole object to those found in its message; the object is used up.

        Raises:
            DecodeError: the object is no message of canal-json.
        """
        if _is_row(parsed):
            op = _OPS[parsed["type"]]
            for at, one in enumerate(_each_alone(parsed, op), len(found)):
                found.append(self._row(one, op, message, at))
            return
        event = _control(parsed, parsed.get("type"), message, len(found))
        if isinstance(event, DdlEvent):
            self._learn(event)
        found.append(event)

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
        told = commit_ts is not None and commit_ts >> 18 == es and len(extension) == 1  # type: ignore[arg-type]
        untold = not told or op is _UPDATE or shape.wire_types is not None
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
                _extension(parsed, commit_ts, shape, old) if untold else None,
            )
        )


def _each_alone(parsed: Parsed, op: Op) -> Iterator[Parsed]:
    """A message of several rows, which Alibaba's Canal sends, as messages of one."""
    rows = parsed.get("data")
    if type(rows) is not list or len(rows) < 2:
        yield parsed
        return
    old = _old_rows(parsed, rows) if op is _UPDATE else [None] * len(rows)
    for row, before in zip(rows, old, strict=True):
        yield {**parsed, "data": [row], "old": [before]}


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
    as_told = es is None or (commit_ts is not None and commit_ts >> 18 == es)
    partial = old is not None and len(old) < len(shape.names)  # type: ignore[arg-type]  # was read as a row
    no_more = not members or (len(members) == 1 and "commitTs" in members)
    if as_told and shape.wire_types is None and not partial and no_more:
        return None
    extension: dict[str, object] = {}
    if not as_told:
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
