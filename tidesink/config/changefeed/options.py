"""Every option of a Kafka changefeed, where it is written, and how sink URI and file are put together.

Facts are TiCDC's (tiflow c7b2588; its new architecture b813e76): pkg/config, pkg/sink/kafka, pkg/sink/codec.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

from tidesink.codecs.base import Producer
from tidesink.config.changefeed import go_text
from tidesink.config.changefeed.given import Given
from tidesink.errors import shown

Kind = Literal["boolean", "int", "int32", "int16", "text", "duration"]
# Where TiCDC finds a fault: each is a step of starting a changefeed, in this order.
Stage = Literal["replica-config", "topic", "kafka-options", "encoder-config", "event-router"]
OptionValue = bool | int | str | tuple[str, ...]

_KAFKA: Final = ("sink", "kafka-config")
_CODEC: Final = (*_KAFKA, "codec-config")
_BITS: Final = {"int": 64, "int32": 32, "int16": 16}
_WORDS: Final = {"boolean": bool, "int": int, "int32": int, "int16": int, "text": str, "duration": str}
_EXPECTED: Final = {bool: "true or false without quotes", int: "a whole number without quotes", str: "a text"}


class Refusal(NamedTuple):
    """One thing that is refused: at which stage of TiCDC's, where it stands, why, and what to do."""

    stage: Stage
    field: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}; {self.remedy}"


class Option(NamedTuple):
    """One option. ``place`` is its section in the TOML; None: the URI alone has it."""

    name: str
    kind: Kind
    stage: Stage
    default: OptionValue | None = None
    place: tuple[str, ...] | None = None
    uri: bool = True
    producer: Producer | None = None
    secret: bool = False


def _kafka(name: str, kind: Kind, default: OptionValue | None = None, **more: Any) -> Option:
    return Option(name, kind, "kafka-options", default, _KAFKA, **more)


def _codec(name: str, kind: Kind, default: OptionValue | None = None, **more: Any) -> Option:
    return Option(name, kind, "encoder-config", default, _CODEC, **more)


def _sink(name: str, kind: Kind, default: OptionValue | None = None, **more: Any) -> Option:
    return Option(name, kind, "encoder-config", default, ("sink",), **more)


OPTIONS: Final = (
    _kafka("partition-num", "int32"),
    _kafka("replication-factor", "int16", 1),
    _kafka("kafka-version", "text", "2.4.0"),
    _kafka("max-message-bytes", "int", 10 * 2**20),
    _kafka("compression", "text", "none"),
    _kafka("kafka-client-id", "text"),
    _kafka("auto-create-topic", "boolean", default=True),
    _kafka("dial-timeout", "duration", "10s"),
    _kafka("write-timeout", "duration", "10s"),
    _kafka("read-timeout", "duration", "10s"),
    _kafka("required-acks", "int", -1),
    _kafka("sasl-user", "text"),
    _kafka("sasl-password", "text", secret=True),
    _kafka("sasl-mechanism", "text"),
    _kafka("sasl-gssapi-auth-type", "text"),
    _kafka("sasl-gssapi-password", "text", secret=True),
    _kafka("sasl-oauth-client-id", "text", uri=False),
    _kafka("sasl-oauth-client-secret", "text", uri=False, secret=True),
    _kafka("sasl-oauth-token-url", "text", uri=False),
    _kafka("enable-tls", "boolean"),
    _kafka("ca", "text"),
    _kafka("cert", "text"),
    _kafka("key", "text"),
    _kafka("insecure-skip-verify", "boolean"),
    _kafka("output-raw-change-event", "boolean", default=False, uri=False),
    _codec("enable-tidb-extension", "boolean", default=False),
    _codec("max-batch-size", "int", 16),
    _codec("avro-decimal-handling-mode", "text", "precise"),
    _codec("avro-bigint-unsigned-handling-mode", "text", "long"),
    _codec("avro-enable-watermark", "boolean", default=False),
    _codec("avro-include-before-value", "boolean", default=False, producer="new"),
    _codec("output-row-key", "boolean", default=False, producer="new"),
    _sink("schema-registry", "text", "", secret=True),
    _sink("only-output-updated-columns", "boolean", default=False),
    _sink("content-compatible", "boolean", default=False),
    _sink("delete-only-output-handle-key-columns", "boolean", default=False, uri=False),
    _sink("terminator", "text", "\r\n", uri=False),
    Option("encoder-concurrency", "int", "replica-config", place=("sink",), uri=False),
    Option(
        "debezium-include-start-ts", "boolean", "encoder-config", default=False, place=None, producer="new"
    ),
)


_BY_NAME: Final = {option.name: option for option in OPTIONS}


def place_of(field: str, given: Given) -> str:
    """Where the options stand that a refusal is about: in the sink URI, or by section in the TOML."""
    if field.startswith(("sink-uri", "changefeed")):
        return field
    return ", ".join(_place_of(name, given) for name in field.split(", "))


def _place_of(name: str, given: Given) -> str:
    option = _BY_NAME.get(name)
    place = option.place if option is not None else ("sink",)
    if name not in given.parameters and place is not None and given.setting(*place, name) is not None:
        return f"changefeed: {'.'.join((*place, name))}"
    return f"sink-uri: {name}"


class Read(NamedTuple):
    """Options with their values, by name; None where nothing is given and TiCDC has no default."""

    values: dict[str, Any]
    refusals: list[Refusal]


def read_options(given: Given, producer: Producer) -> Read:
    """Every option: the URI's value over the file's, over TiCDC's default.

    A value of nothing (false, 0, an empty text) in the URI does not undo the file's: TiCDC merges them so.
    """
    read = Read({}, [])
    for option in OPTIONS:
        if option.producer in (None, producer):
            read.values[option.name] = _value(option, given, read.refusals)
    return read


def _value(option: Option, given: Given, refusals: list[Refusal]) -> Any:
    written = list(_written(option, given, refusals))
    value = written[0] if written else option.default
    if len(written) == 2 and not written[0]:
        value = written[1]
    if value == "" and (option.kind == "duration" or option.name.startswith("avro-")):
        value = option.default
    if option.kind == "duration" and value is not None:
        return _duration(option, str(value), given, refusals)
    return value


def _duration(option: Option, text: str, given: Given, refusals: list[Refusal]) -> str | None:
    try:
        return go_text.shown_duration(go_text.duration(text))
    except ValueError as error:
        field = _place_of(option.name, given)
        refusals.append(Refusal(option.stage, field, f"{shown(text)} is no duration", str(error)))
        return None


def _written(option: Option, given: Given, refusals: list[Refusal]) -> Iterator[Any]:
    """The values that were written, the URI's first; a wrong one is refused and passed over."""
    text = given.parameters.get(option.name) if option.uri else None
    found = None if option.place is None else given.setting(*option.place, option.name)
    for field, raw, read in (
        (f"sink-uri: {option.name}", text, _of_text),
        (f"changefeed: {'.'.join((*(option.place or ()), option.name))}", found, _of_toml),
    ):
        if raw is None:
            continue
        try:
            yield read(option.kind, raw)
        except ValueError as error:
            said = "the value" if option.secret else shown(raw)
            refusals.append(Refusal(option.stage, field, f"{said} cannot be read", str(error)))


def _of_text(kind: Kind, text: Any) -> Any:
    if kind == "boolean":
        return go_text.boolean(text)
    return go_text.integer(text, _BITS[kind]) if kind in _BITS else text


def _of_toml(kind: Kind, value: Any) -> Any:
    fits = type(value) is _WORDS[kind]  # isinstance would take a boolean for an integer
    if not fits:
        raise ValueError(f"give {_EXPECTED[_WORDS[kind]]}")
    return go_text.in_range(value, _BITS[kind]) if kind in _BITS else value
