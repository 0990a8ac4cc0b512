"""The options of a Kafka changefeed: its sink URI and TOML parsed, and each option's place and values.

Facts are TiCDC's (tiflow c7b2588; its new architecture b813e76): pkg/config, pkg/sink/kafka,
pkg/sink/codec. Values are read as Go's standard library reads them, since TiCDC reads them with it; a value
that it refuses raises ValueError with what to write instead.

A sink URI holds passwords: neither it nor a value behind a secret's name is ever part of an error.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from tidesink.codecs.base import Producer
from tidesink.errors import ConfigError, shown

KAFKA_SCHEMES = ("kafka", "kafka+ssl")
_DATABASES = ("mysql", "mysql+ssl", "tidb", "tidb+ssl")


@dataclass(frozen=True)
class Given:
    """The parts of a sink URI and the changefeed's settings. ``parameters`` may hold secrets."""

    scheme: str
    hosts: str
    path: str
    parameters: Mapping[str, str] = dataclass_field(repr=False)
    settings: Mapping[str, Any] = dataclass_field(repr=False)

    @property
    def kafka(self) -> bool:
        """Whether the changefeed writes to Kafka."""
        return self.scheme in KAFKA_SCHEMES

    @property
    def database(self) -> bool:
        """Whether it writes to a database of MySQL's kind."""
        return self.scheme in _DATABASES

    @property
    def brokers(self) -> tuple[str, ...]:
        """The bootstrap servers."""
        return tuple(self.hosts.split(","))

    @property
    def topic(self) -> str:
        """The topic in the path."""
        return self.path.strip("/")

    def setting(self, *place: str) -> Any:
        """A setting of the TOML by its place, or None.

        Raises:
            ConfigError: something else than a section stands on the way.
        """
        found: Any = self.settings
        for depth, name in enumerate(place):
            if not isinstance(found, Mapping):
                raise ConfigError(
                    f"changefeed: {'.'.join(place[:depth])} is a section, write it as [section]"
                )
            found = found.get(name)
            if found is None:
                return None
        return found

    @property
    def dispatchers(self) -> list[Mapping[str, Any]]:
        """The rules of ``[sink] dispatchers``.

        Raises:
            ConfigError: it is no list of rules.
        """
        rules = self.setting("sink", "dispatchers") or []
        if not isinstance(rules, list) or not all(isinstance(rule, Mapping) for rule in rules):
            raise ConfigError("changefeed: sink.dispatchers is a list: [{matcher = ['shop.*'], …}]")
        return rules


def read_given(sink_uri: str, settings: Mapping[str, Any] | None = None) -> Given:
    """The parts of a sink URI, beside the settings of the changefeed's TOML.

    Raises:
        ConfigError: it is no URI.
    """
    try:
        parts = urlsplit(sink_uri)
    except ValueError as error:
        raise ConfigError("sink-uri is no URI; give kafka://host:port/topic?protocol=…") from error
    if not parts.scheme or not sink_uri[len(parts.scheme) :].startswith("://"):
        raise ConfigError("sink-uri has no scheme; give kafka://host:port/topic?protocol=…")
    # Of a name given twice TiCDC takes the first, and drops a pair with a semicolon.
    pairs = (pair for pair in parse_qsl(parts.query, keep_blank_values=True) if ";" not in pair[0])
    parameters: dict[str, str] = {}
    for name, value in pairs:
        parameters.setdefault(name, value)
    hosts = parts.netloc.rpartition("@")[2]
    return Given(parts.scheme.lower(), hosts, unquote(parts.path), parameters, settings or {})


def read_toml(text: str) -> dict[str, Any]:
    """The settings in a changefeed's TOML.

    Raises:
        ConfigError: it is no TOML; or Python is 3.10 and has no package ``tomli``.
    """
    name = "tomllib" if sys.version_info >= (3, 11) else "tomli"
    try:
        toml = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"reading a changefeed's TOML needs the package {name}: pip install {name}"
        ) from error
    try:
        found: dict[str, Any] = toml.loads(text)
    except toml.TOMLDecodeError as error:
        raise ConfigError(f"the changefeed's settings are no TOML: {_first_line(error)}") from error
    return found


def read_toml_file(file: Path) -> dict[str, Any]:
    """The settings in a changefeed's file.

    Raises:
        ConfigError: it cannot be read, or is no TOML.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{file} cannot be read: {reason}") from error
    try:
        return read_toml(text)
    except ConfigError as error:
        error.with_context(file=str(file))
        raise


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


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
        return shown_duration(duration(text))
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
        return boolean(text)
    return integer(text, _BITS[kind]) if kind in _BITS else text


def _of_toml(kind: Kind, value: Any) -> Any:
    fits = type(value) is _WORDS[kind]  # isinstance would take a boolean for an integer
    if not fits:
        raise ValueError(f"give {_EXPECTED[_WORDS[kind]]}")
    return in_range(value, _BITS[kind]) if kind in _BITS else value


_BOOLEANS: Final = dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True) | dict.fromkeys(
    ("0", "f", "F", "FALSE", "false", "False"), False
)
_INTEGER: Final = re.compile(r"[+-]?[0-9]+", re.ASCII)
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_NANOSECONDS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}
_SECOND: Final = 10**9


def boolean(text: str) -> bool:
    """``true`` or ``false`` as strconv.ParseBool takes them; an empty text is false, as in a query."""
    if not text:
        return False
    if text not in _BOOLEANS:
        raise ValueError("use true or false")
    return _BOOLEANS[text]


def integer(text: str, bits: int) -> int:
    """A decimal integer of so many bits; an empty text is 0, as in a query."""
    if text and not _INTEGER.fullmatch(text):
        raise ValueError("give a whole number")
    return in_range(int(text or "0"), bits)


def in_range(number: int, bits: int) -> int:
    """The number itself, if a signed integer of so many bits holds it."""
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"give a number below {1 << bits - 1}")
    return number


def duration(text: str) -> int:
    """A duration such as ``10s``, ``2m30s`` or ``100ms``, in nanoseconds."""
    body = text[1:] if text[:1] in ("+", "-") else text
    if body == "0":
        return 0
    parts = _PART.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise ValueError("give a number with a unit: 500ms, 10s, 2m30s")
    total = int(sum(Decimal(number) * _NANOSECONDS[unit] for number, unit in parts))
    return -total if text.startswith("-") else total


def shown_duration(nanoseconds: int) -> str:
    """A duration as Go prints it: ``2m0s``, ``1.5s``, ``100ms``."""
    size = abs(nanoseconds)
    sign = "-" if nanoseconds < 0 else ""
    if size == 0:
        return "0s"
    if size < _SECOND:
        unit = next(unit for unit in ("ms", "µs", "ns") if size >= _NANOSECONDS[unit])
        return f"{sign}{_fraction(size, _NANOSECONDS[unit])}{unit}"
    hours, rest = divmod(size, _NANOSECONDS["h"])
    minutes, rest = divmod(rest, _NANOSECONDS["m"])
    seconds = f"{_fraction(rest, _SECOND)}s"
    if hours:
        return f"{sign}{hours}h{minutes}m{seconds}"
    return f"{sign}{minutes}m{seconds}" if minutes else f"{sign}{seconds}"


def _fraction(size: int, unit: int) -> str:
    text = format(Decimal(size) / Decimal(unit), "f")
    return text.rstrip("0").rstrip(".") if "." in text else text
