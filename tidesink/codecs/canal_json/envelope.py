"""Parses canal-json records as JSON, decodes DDL events and watermarks, and checks messages against a schema.

``CanalJsonSchema`` checks messages against the published JSON Schema of canal-json. Messages of TiCDC
(classic and new architecture) and of Alibaba's Canal (FlatMessage) conform to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import orjson

from tidesink.codecs.base import kept
from tidesink.codecs.framing import not_json
from tidesink.codecs.large_messages import LargeMessages
from tidesink.codecs.options import CanalJsonOptions
from tidesink.errors import DecodeError, FramingError, SchemaMismatchError, shown
from tidesink.events import DdlEvent, Event, Message, Op, Position, TableId, WatermarkEvent

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError


Parsed = dict[str, Any]
OPS: Final = {"INSERT": Op.INSERT, "UPDATE": Op.UPDATE, "DELETE": Op.DELETE}
_WATERMARK: Final = "TIDB_WATERMARK"


def objects(value: bytes | None, large: LargeMessages) -> list[Parsed]:
    """Returns the JSON objects in the value of one record, which may be compressed.

    Raises:
        DecodeError: The record has no value, its compression is damaged, or the value is not a JSON object.
    """
    if not value:
        raise FramingError(
            "The record has no value, but every canal-json record has one. Is the topic canal-json?"
        )
    try:
        return [_object(orjson.loads(value))]
    except orjson.JSONDecodeError:
        plain = large.plain(value)
    return _each_line(value if plain is None else plain)


def _each_line(value: bytes) -> list[Parsed]:
    try:
        return [_object(orjson.loads(value))]
    except orjson.JSONDecodeError as error:
        # JSON text escapes every newline, so a bare newline ends an object.
        lines = [line for line in value.split(b"\n") if line.strip()]
        try:
            if len(lines) > 1:
                return [_object(orjson.loads(line)) for line in lines]
        except orjson.JSONDecodeError:
            pass
        what = not_json(value)
        named = "" if what is None else f" {what}"
        raise FramingError(
            f"The value is not JSON: {error}.{named} Is the topic's protocol canal-json?"
        ) from None


def _object(parsed: object) -> Parsed:
    if not isinstance(parsed, dict):
        raise SchemaMismatchError(f"Expected a JSON object, but got {type(parsed).__name__}.")
    return parsed


def control_event(parsed: Parsed, kind: object, message: Message, index: int) -> Event:
    """Returns the DDL event or watermark of a parsed message.

    ``kind``: member ``type`` of the message. ``index``: index of the event among the events of its record.

    Raises:
        SchemaMismatchError: The message is neither a DDL event nor a watermark, or a member is not valid.
    """
    if type(kind) is not str:
        raise SchemaMismatchError("The message has no 'type'. Is the topic's protocol canal-json?")
    extension = parsed.get("_tidb")
    if extension is not None and type(extension) is not dict:
        raise SchemaMismatchError("The message's '_tidb' must be a JSON object.")
    if kind == _WATERMARK:
        return _watermark(extension or {}, message, index)
    if parsed.get("isDdl") is not True or kind in OPS:
        raise SchemaMismatchError(
            f"Unknown message (type {shown(kind, 40)}, isDdl {shown(parsed.get('isDdl'), 40)}). Expected the "
            f"type INSERT, UPDATE, DELETE or {_WATERMARK}, or a DDL event with isDdl true."
        )
    return _ddl(parsed, kind, message, index)


def _watermark(extension: Mapping[str, object], message: Message, index: int) -> WatermarkEvent:
    watermark = timestamp(extension, "watermarkTs")
    if watermark is None:
        raise SchemaMismatchError("The watermark has no '_tidb.watermarkTs'.")
    position = Position(message.topic, message.partition, message.offset, index, (watermark,))
    return WatermarkEvent(watermark, position)


_OTHER_PIPELINE: Final = (
    "Have the pipeline read the topic that TiCDC or Canal writes, or have the job write debezium-json with "
    "a source block and set protocol: debezium-json."
)
_FLINK: Final = (
    "The message has only 'data' and 'type', as Flink's canal-json format writes it. It does not contain "
    f"the table, its key or its types. {_OTHER_PIPELINE}"
)
_FLINK_CDC: Final = (
    "The message has no 'mysqlType', 'es' and 'isDdl', like messages of a Flink CDC pipeline. Such messages "
    "do not contain the columns' types, so tidesink could read values incorrectly. "
    f"{_OTHER_PIPELINE}"
)
_CONNECT: Final = (
    "The message has only 'schema' and 'payload', as Kafka Connect's JsonConverter writes it. If Debezium "
    "wrote its rows, whole or flattened by ExtractNewRecordState, set protocol: debezium-json. If a "
    "connector copied TiCDC's or Canal's topic, set its value.converter to ByteArrayConverter, so that it "
    "copies the records unchanged."
)
_FLATTENED: Final = (
    "The message has {}, like a row of Debezium that ExtractNewRecordState flattened. Set protocol: "
    "debezium-json."
)
_FLATTENED_MEMBERS: Final = ("__op", "__deleted", "__table")
_MAXWELL: Final = (
    "The message comes from Maxwell (type {}), whose format tidesink does not read. Have TiCDC, Canal or "
    "Debezium write the topic, and set protocol to the producer's format."
)
# Maxwell's documentation, "Data format", and its class RowMap: rows with and without a bootstrap.
_MAXWELL_TYPES: Final = frozenset(
    {"insert", "update", "delete", "bootstrap-start", "bootstrap-insert", "bootstrap-complete"}
)
_MAXWELL_MEMBERS: Final = ("xid", "xoffset", "commit")
# Flink CDC's CanalJsonSerializationSchema writes exactly these members.
_FLINK_CDC_MEMBERS: Final = frozenset({"data", "old", "type", "database", "table", "pkNames", "ts"})
_DEBEZIUM: Final = (
    "The message has Debezium's members ('op' with 'before' and 'after'). Set protocol: debezium-json."
)


@contextmanager
def other_dialects_named(parsed: Parsed) -> Iterator[None]:
    """While the block runs, replaces its errors by clearer ones if neither TiCDC nor Canal wrote the message.

    Raises:
        SchemaMismatchError: The block raised it. If the message has the form of another known program, for
            example Maxwell, the error text is replaced: it names that program and what to set instead.
    """
    try:
        yield
    except SchemaMismatchError as error:
        reason = _dialect(parsed)
        if reason is None:
            raise
        raise SchemaMismatchError(reason, **error.context) from error


def _dialect(parsed: Parsed) -> str | None:
    payload = parsed.get("payload", parsed)
    if isinstance(payload, dict) and "op" in payload and {"before", "after"} & payload.keys():
        return _DEBEZIUM
    if "payload" in parsed and parsed.keys() <= {"schema", "payload"}:
        return _CONNECT
    added = next((name for name in _FLATTENED_MEMBERS if name in parsed), None)
    if added is not None and "type" not in parsed:
        return _FLATTENED.format(added)
    if "type" in parsed and parsed.keys() <= {"data", "type", "old"}:
        return _FLINK
    if _is_maxwell(parsed):
        return _MAXWELL.format(shown(parsed["type"], 40))
    if _is_flink_cdc(parsed):
        return _FLINK_CDC
    return None


def _is_maxwell(parsed: Parsed) -> bool:
    """Returns True if a message has Maxwell's form, in which ``data`` is one object instead of a list."""
    kind = parsed.get("type")
    if not isinstance(kind, str) or kind not in _MAXWELL_TYPES or isinstance(parsed.get("data"), list):
        return False
    return "data" in parsed or any(member in parsed for member in _MAXWELL_MEMBERS)


def _is_flink_cdc(parsed: Parsed) -> bool:
    """Returns True if a message has the members of a row change that a Flink CDC pipeline writes."""
    if not {"data", "type", "database", "table"} <= parsed.keys() <= _FLINK_CDC_MEMBERS:
        return False
    images = [parsed[name] for name in ("data", "old") if parsed.get(name) is not None]
    kind = parsed["type"]
    return (
        isinstance(kind, str)
        and kind in OPS
        and bool(images)
        and all(isinstance(image, list) for image in images)
    )


def _ddl(parsed: Parsed, kind: str, message: Message, index: int) -> DdlEvent:
    database, name, query = (_text(parsed, member) for member in ("database", "table", "sql"))
    commit_ts = timestamp(parsed.get("_tidb") or {}, "commitTs")
    source = None if commit_ts is None else (commit_ts,)
    position = Position(message.topic, message.partition, message.offset, index, source)
    es = kept(parsed.get("es"), "es")
    extension = {"es": es} if commit_ts is None and es is not None else None
    return DdlEvent(TableId(database, name), query, kind, commit_ts, position, extension)


def _text(parsed: Parsed, member: str) -> str:
    value = parsed.get(member)
    if type(value) is not str:
        raise SchemaMismatchError(f"The DDL message must have the member {member!r} with a text.")
    return value


def timestamp(extension: Mapping[str, object], member: str) -> int | None:
    """Returns the TSO in a member of ``_tidb``, or None if the member is missing or null.

    Raises:
        SchemaMismatchError: The member is not an unsigned integer.
    """
    value = extension.get(member)
    # orjson parses integers beyond 64 bits as floats, which are not valid here either.
    if value is not None and (type(value) is not int or value < 0):
        raise SchemaMismatchError(
            f"The message's '_tidb.{member}' must be an unsigned integer, not {shown(value, 40)}."
        )
    return value


_FILE: Final = "canal-json.schema.json"
_PLAIN_NAME: Final = re.compile(r"\w+")


def canal_json_schema() -> dict[str, Any]:
    """Returns the JSON Schema (draft 2020-12) of one canal-json object."""
    text = (files("tidesink.codecs") / "schemas" / _FILE).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


class CanalJsonSchema:
    """Checks canal-json messages against the JSON Schema of canal-json.

    Compressed messages are decompressed first. The claim-check file of a large message is not read: only the
    message in Kafka is checked.
    """

    def __init__(self, options: CanalJsonOptions | None = None) -> None:
        self._large = LargeMessages(options or CanalJsonOptions())

    def check(self, message: Message) -> None:
        """Checks that each JSON object of a message conforms to the schema.

        Raises:
            SchemaMismatchError: A member does not conform. The error text has the member's JSON path.
            FramingError: The message is not JSON.

        Both errors' context has topic, partition and offset.
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
            raise SchemaMismatchError(f"{_path(worst)}: {_reason(worst)} (required by {_FILE}).")

    @cached_property
    def _validator(self) -> Draft202012Validator:
        from jsonschema import Draft202012Validator

        return Draft202012Validator(canal_json_schema())


def _path(error: ValidationError) -> str:
    """Returns the JSON path of an invalid value, such as ``$.data[0].id``; names with symbols are quoted."""
    path = "$"
    for part in error.absolute_path:
        plain = f".{part}" if _PLAIN_NAME.fullmatch(str(part)) else f"[{shown(part)}]"
        path += f"[{part}]" if isinstance(part, int) else plain
    return path


def _reason(error: ValidationError) -> str:
    """Returns the reason why a value is not valid, as a clause for users.

    jsonschema's own messages are not used, because they quote the whole value, which may be a row.
    """
    keyword = str(error.validator)
    wanted: Any = error.validator_value
    value: Any = error.instance
    if keyword == "required":
        return f"{', '.join(repr(name) for name in wanted if name not in value)} is missing"
    if keyword == "additionalProperties" and isinstance(value, dict):
        members = canal_json_schema()["$defs"]["extension"]["properties"]  # the only closed object
        unknown = sorted(value.keys() - members.keys())
        return f"{', '.join(map(shown, unknown))} is not a known member"
    words = _WORDS.get(keyword, f"breaks the rule {keyword}")
    what = f"the {_KINDS[type(value)]}" if isinstance(value, dict | list) else _json_text(value)
    return f"{what} {words.format(wanted=_listed(wanted))}"


def _json_text(value: Any) -> str:
    return shown(value) if isinstance(value, str) else json.dumps(value)


def _listed(wanted: Any) -> str:
    if isinstance(wanted, list):
        return " or ".join(map(str, wanted))
    return wanted if isinstance(wanted, str) else json.dumps(wanted)


_KINDS: Final[dict[type, str]] = {dict: "object", list: "array"}
_WORDS: Final = {
    "type": "is not of type {wanted}",
    "enum": "is not one of {wanted}",
    "const": "must be {wanted}",
    "minLength": "is empty",
    "minItems": "is empty",
    "minimum": "is below {wanted}",
    "maximum": "is above {wanted}",
    "uniqueItems": "contains a column twice",
}
