"""Every error that tidesink raises on purpose.

TidesinkError                        .context has the location, .remedy says who acts next
├── ConfigError               fix    a setting is wrong or unknown: key, value, what is allowed
├── DecodeError               reject this record only: dead letter or pause, by policy
│   ├── FramingError                 the bytes before the payload are not this codec's
│   ├── SchemaMismatchError          the payload does not fit its schema or shape
│   ├── ValueOutOfRangeError         a value that its column's type cannot hold
│   ├── UnnamedRowError              a change that identifies no row
│   ├── ChecksumError                a row that does not match its checksum: it was damaged
│   ├── RowUnavailableError          a row that is stored elsewhere, and was not found
│   ├── FilterError                  a row that the table's filter cannot be evaluated for
│   ├── HorizonError                 a change older than the remembered deletes
│   └── UnsupportedMessageError      a message that this version cannot read yet
├── EncodeError               fix    an event that the codec cannot write
├── RegistryError             fix    the registry refused, and will refuse again
│   ├── SchemaNotFoundError   fix    no such schema id, subject or version
│   ├── UnusableSchemaError   fix    a schema is not Avro, or its references cannot be followed
│   ├── IncompatibleSchemaError stop the registry refuses a schema: names the field
│   └── RegistryUnavailableError retry  no answer, or 408/429/5xx
├── SourceError               stop   Kafka no longer holds the records after the progress
│   └── SourceUnavailableError retry the broker does not answer
├── TargetError               stop
│   ├── TransientTargetError  retry
│   ├── CommitUnknownError    re-read progress  the commit may or may not have happened
│   ├── SchemaRefusedError    stop   the target's schema cannot hold the change
│   └── ValueNotStoredError   stop   a stored value should stay, but the target does not have it
├── ProgressError             stop
│   ├── StaleProgressError    stop   another worker holds this table, or progress moved back
│   └── MixedPartitionsError  stop   one key in two partitions: order is lost
├── AccountingError           stop   read ≠ applied + superseded + without-row + dead-lettered
├── StateStoreError           retry  the worker's own state store failed
├── NotKeptError              fix    the requested dead letter or DDL event is not stored
└── DevStackError             fix    the local broker or registry cannot start

The meanings of ``remedy``: ``fix`` (a person changes something), ``retry`` (with backoff),
``reject`` (this record only), ``stop`` (this table), ``re-read progress`` (ask ``committed()`` first).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar, Final, Literal

Remedy = Literal["fix", "retry", "reject", "stop", "re-read progress"]
ContextValue = str | int | None


# Number of known names in a message: all of them, or the nearest ones of many.
_MOST_NAMED: Final = 12
_NEAREST: Final = 4
# Context that the message contains already.
_OF_A_CHANGE: Final = frozenset({"change", "before", "after"})


# Advice for existing rows that cannot be continued; the page has the steps.
LOAD_AGAIN: Final = 'load the table again under another name (docs/schema-changes.md, "Load a table again")'


class TidesinkError(Exception):
    """An error that reports what happened, where, and what to do next.

    ``context`` holds any of: topic, partition, offset, table, column, schema_id, subject, url, key.
    It never holds a secret. ``change`` (its kind), ``before`` and ``after`` describe a schema change.
    """

    remedy: ClassVar[Remedy] = "stop"
    # Next step for a person, if the text for the remedy does not fit.
    next_step: str = ""

    def __init__(self, message: str, **context: ContextValue) -> None:
        super().__init__(message)
        self.message = message
        self.context: dict[str, ContextValue] = {k: v for k, v in context.items() if v is not None}

    def __str__(self) -> str:
        where = self.where()
        return f"{where}: {self.message}" if where else self.message

    def where(self) -> str:
        """Return the location as ``topic[partition]@offset`` with other context, or an empty string."""
        rest = {k: v for k, v in self.context.items() if k not in _OF_A_CHANGE}
        topic, partition, offset = (rest.pop(name, None) for name in ("topic", "partition", "offset"))
        place = "" if topic is None else str(topic)
        if partition is not None:
            place += f"[{partition}]@{offset}"
        return " ".join([place, *(f"{k}={v}" for k, v in rest.items())]).strip()

    def with_context(self, **context: ContextValue) -> TidesinkError:
        """Add context to this error and return it. Existing context is not replaced."""
        self.context = {**{k: v for k, v in context.items() if v is not None}, **self.context}
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.message, self.context)


def error_text(error: BaseException) -> str:
    """Return an error's class and text.

    Some of Spark's errors ask the JVM for their text, which may have ended.
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  (whatever fails here, the class is known)
        text = "the text is lost, since the process that has it has ended"
    return f"{type(error).__name__}: {text}"


def _restore(cls: type[TidesinkError], message: str, context: dict[str, ContextValue]) -> TidesinkError:
    return cls(message, **context)


class ConfigError(TidesinkError):
    """A setting is wrong or unknown."""

    remedy: ClassVar[Remedy] = "fix"


class DecodeError(TidesinkError):
    """One record cannot be decoded."""

    remedy: ClassVar[Remedy] = "reject"


class FramingError(DecodeError):
    """The bytes before the payload are not this codec's."""


class SchemaMismatchError(DecodeError):
    """The payload does not fit its schema or shape."""


class ValueOutOfRangeError(DecodeError):
    """A value that its column's type cannot hold."""


class UnnamedRowError(DecodeError):
    """A row change that identifies no row; the message names the producer option that helps."""


class ChecksumError(DecodeError):
    """A row whose checksum differs from the source's; the message has both checksums."""


class RowUnavailableError(DecodeError):
    """A row that is stored outside its message, and was not found; the message has the next step."""


class HorizonError(DecodeError):
    """A change older than the deletes that the table remembers; the message has the next step."""


class FilterError(DecodeError):
    """A row that the table's filter fails on, or that lacks a value for it; the message has the filter."""


class UnsupportedMessageError(DecodeError):
    """A message with a row change in a form that this version cannot read yet."""


class EncodeError(TidesinkError):
    """An event that the codec cannot write."""

    remedy: ClassVar[Remedy] = "fix"


class RegistryError(TidesinkError):
    """The schema registry refused, and will refuse again."""

    remedy: ClassVar[Remedy] = "fix"


class SchemaNotFoundError(RegistryError):
    """The schema id, subject or version does not exist."""


class UnusableSchemaError(RegistryError):
    """A schema of the registry cannot be used: it is not Avro, or its references cannot be followed."""


class IncompatibleSchemaError(RegistryError):
    """The registry refuses a schema under its compatibility level."""

    remedy: ClassVar[Remedy] = "stop"


class RegistryUnavailableError(RegistryError):
    """The registry does not answer, or asks to try again later."""

    remedy: ClassVar[Remedy] = "retry"


class SourceError(TidesinkError):
    """Kafka no longer holds the records after the progress."""

    remedy: ClassVar[Remedy] = "stop"


class SourceUnavailableError(SourceError):
    """The origin of the rows does not answer: the database, a task that reads, or the broker."""

    remedy: ClassVar[Remedy] = "retry"


class BrokerUnavailableError(SourceUnavailableError):
    """The broker does not answer."""


class TargetError(TidesinkError):
    """The target refused."""


class TransientTargetError(TargetError):
    """The target may accept the same batch a little later."""

    remedy: ClassVar[Remedy] = "retry"


class CommitUnknownError(TargetError):
    """The commit may or may not have happened: ask ``committed()`` before anything else."""

    remedy: ClassVar[Remedy] = "re-read progress"


class SchemaRefusedError(TargetError):
    """The target's schema cannot hold the change."""


class ValueNotStoredError(TargetError):
    """The source omitted a value so that the stored one stays, but the target has none; see the message."""


class ProgressError(TidesinkError):
    """Progress cannot be trusted."""


class StaleProgressError(ProgressError):
    """Another worker holds this table, or the target is older than its own progress."""


class MixedPartitionsError(ProgressError):
    """One key arrived in two partitions, so Kafka's order does not apply to it."""


class AccountingError(TidesinkError):
    """The number of rows read differs from the number of rows accounted for."""


class StateStoreError(TidesinkError):
    """The worker's own state store failed."""

    remedy: ClassVar[Remedy] = "retry"


class UnusableStateStoreError(StateStoreError):
    """The state store's file cannot be opened or written, and a retry does not help."""

    remedy: ClassVar[Remedy] = "fix"


class SparkEndedError(TidesinkError):
    """Spark's JVM has ended while a worker needs it."""

    remedy: ClassVar[Remedy] = "retry"


class NotKeptError(TidesinkError):
    """The requested dead letter or DDL event is not stored; the message has the request."""

    remedy: ClassVar[Remedy] = "fix"


class DevStackError(TidesinkError):
    """The local broker or registry cannot start."""

    remedy: ClassVar[Remedy] = "fix"


def shown(value: object, most: int = 80) -> str:
    """Return a value as Python writes it; of long text or bytes the first ``most`` characters and ``…``."""
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= most else f"{value[:most]!r}…"
    try:
        text = repr(value)
    except RecursionError:
        # orjson reads values that are nested more deeply than Python can write.
        text = f"{type(value).__name__} nested too deep to be shown"
    return text if len(text) <= most else f"{text[:most]}…"


def nearest(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean x?)``, or an empty text if no known word is similar."""
    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def one_of(word: str, known: Iterable[str]) -> str:
    """Return the advice to use a known name: lists all, or the nearest ones and where the rest is listed."""
    names = sorted(known)
    if len(names) <= _MOST_NAMED:
        return f"use one of {', '.join(names)}"
    near = difflib.get_close_matches(word.lower(), names, n=_NEAREST, cutoff=0)
    return f"use one of {', '.join(near)}, …: docs/configuration.md lists all {len(names)}"
