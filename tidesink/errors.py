"""Every error tidesink raises on purpose.

TidesinkError                        .context says where, .remedy says what happens next
├── ConfigError               fix    a setting is wrong or unknown: key, value, what is allowed
├── DecodeError               reject this record only: dead letter or pause, by policy
│   ├── FramingError                 the bytes before the payload are not this codec's
│   ├── SchemaMismatchError          the payload is not what its schema or shape says
│   ├── ValueOutOfRangeError         a value its column's type cannot hold
│   ├── UnnamedRowError              a change that names no row
│   ├── ChecksumError                a row whose checksum says that it was damaged
│   ├── RowUnavailableError          a row that lies elsewhere, and cannot be had
│   ├── FilterError                  a row that the table's filter cannot be asked about
│   ├── HorizonError                 a change older than the deletes still remembered
│   └── UnsupportedMessageError      a message this version does not read yet
├── EncodeError               fix    an event the codec cannot write
├── RegistryError             fix    the registry refused, for good
│   ├── SchemaNotFoundError   fix    no such schema id, subject or version
│   ├── UnusableSchemaError   fix    a schema is no Avro, or its references cannot be followed
│   ├── IncompatibleSchemaError stop the registry refuses a schema: names the field
│   └── RegistryUnavailableError retry  no answer, or 408/429/5xx
├── SourceError               stop   Kafka no longer holds what progress points at
│   └── SourceUnavailableError retry the broker does not answer
├── TargetError               stop
│   ├── TransientTargetError  retry
│   ├── CommitUnknownError    re-read progress  the commit may or may not have happened
│   ├── SchemaRefusedError    stop   the target's schema cannot take the change
│   └── ValueNotStoredError   stop   a value to be kept that the target does not have
├── ProgressError             stop
│   ├── StaleProgressError    stop   another worker holds this table, or progress moved back
│   └── MixedPartitionsError  stop   one key in two partitions: order is lost
├── AccountingError           stop   read ≠ applied + superseded + without-row + dead-lettered
├── StateStoreError           retry  the worker's own state store failed
├── NotKeptError              fix    no dead letter or DDL event where one was asked for
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


# What an error names of what is known: all, or of many the nearest.
_MOST_NAMED: Final = 12
_NEAREST: Final = 4
# What the message says in words already.
_OF_A_CHANGE: Final = frozenset({"change", "before", "after"})


# What a message says where rows that are there cannot go on as they are: the page has the steps.
LOAD_AGAIN: Final = 'load the table again beside it (docs/schema-changes.md, "Load a table again")'


class TidesinkError(Exception):
    """An error that says what, where, and what to do next.

    ``context`` holds any of: topic, partition, offset, table, column, schema_id, subject, url, key.
    It never holds a secret. ``change`` (its kind), ``before`` and ``after`` tell a change of the schema.
    """

    remedy: ClassVar[Remedy] = "stop"
    # What a person is to do next, where the words for the remedy do not say it.
    next_step: str = ""

    def __init__(self, message: str, **context: ContextValue) -> None:
        super().__init__(message)
        self.message = message
        self.context: dict[str, ContextValue] = {k: v for k, v in context.items() if v is not None}

    def __str__(self) -> str:
        where = self.where()
        return f"{where}: {self.message}" if where else self.message

    def where(self) -> str:
        """The place as ``topic[partition]@offset``, then any other context, or an empty string."""
        rest = {k: v for k, v in self.context.items() if k not in _OF_A_CHANGE}
        topic, partition, offset = (rest.pop(name, None) for name in ("topic", "partition", "offset"))
        place = "" if topic is None else str(topic)
        if partition is not None:
            place += f"[{partition}]@{offset}"
        return " ".join([place, *(f"{k}={v}" for k, v in rest.items())]).strip()

    def with_context(self, **context: ContextValue) -> TidesinkError:
        """The same error with places added; those already said win."""
        self.context = {**{k: v for k, v in context.items() if v is not None}, **self.context}
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.message, self.context)


def error_text(error: BaseException) -> str:
    """An error's class and text. Some of Spark's ask the JVM for theirs, and fail where that has ended."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  (whatever keeps it from speaking, its class is known)
        text = "it cannot say more, since the process it asks has ended"
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
    """The payload is not what its schema or shape says."""


class ValueOutOfRangeError(DecodeError):
    """A value which its column's type cannot hold."""


class UnnamedRowError(DecodeError):
    """A row change that names no row; the message says which producer option mends it."""


class ChecksumError(DecodeError):
    """A row whose checksum says that it is not what the source stored; names both sums."""


class RowUnavailableError(DecodeError):
    """A row that the message leaves out, and that is not to be had where it lies; says what to do."""


class HorizonError(DecodeError):
    """A change from before the deletes that the table still remembers; says what to compare."""


class FilterError(DecodeError):
    """A row that the table's filter fails on, or needs a value of that was not sent; says which filter."""


class UnsupportedMessageError(DecodeError):
    """A message which carries a row change in a form this version does not read yet."""


class EncodeError(TidesinkError):
    """An event the codec cannot write."""

    remedy: ClassVar[Remedy] = "fix"


class RegistryError(TidesinkError):
    """The schema registry refused, and would refuse again."""

    remedy: ClassVar[Remedy] = "fix"


class SchemaNotFoundError(RegistryError):
    """No such schema id, subject or version."""


class UnusableSchemaError(RegistryError):
    """The registry has a schema that cannot be used: no Avro, or its references cannot be followed."""


class IncompatibleSchemaError(RegistryError):
    """The registry refuses a schema under its compatibility level."""

    remedy: ClassVar[Remedy] = "stop"


class RegistryUnavailableError(RegistryError):
    """No answer, or an answer that asks to come back later."""

    remedy: ClassVar[Remedy] = "retry"


class SourceError(TidesinkError):
    """Kafka no longer holds what progress points at."""

    remedy: ClassVar[Remedy] = "stop"


class SourceUnavailableError(SourceError):
    """What the rows come from does not answer: the database, a task that reads, the broker."""

    remedy: ClassVar[Remedy] = "retry"


class BrokerUnavailableError(SourceUnavailableError):
    """The broker does not answer."""


class TargetError(TidesinkError):
    """The target refused."""


class TransientTargetError(TargetError):
    """The target may take the same batch a little later."""

    remedy: ClassVar[Remedy] = "retry"


class CommitUnknownError(TargetError):
    """The commit may or may not have happened: ask ``committed()`` before anything else."""

    remedy: ClassVar[Remedy] = "re-read progress"


class SchemaRefusedError(TargetError):
    """The target's schema cannot take the change."""


class ValueNotStoredError(TargetError):
    """The source did not send a value, since it is to be kept, and the target has none; says what to do."""


class ProgressError(TidesinkError):
    """Progress cannot be trusted."""


class StaleProgressError(ProgressError):
    """Another worker holds this table, or the target moved back behind its own progress."""


class MixedPartitionsError(ProgressError):
    """One key arrived in two partitions, so Kafka's order says nothing about it."""


class AccountingError(TidesinkError):
    """Rows read are not the rows accounted for."""


class StateStoreError(TidesinkError):
    """The worker's own state store failed."""

    remedy: ClassVar[Remedy] = "retry"


class UnusableStateStoreError(StateStoreError):
    """The state store's file cannot be opened or written, and no later try will find otherwise."""

    remedy: ClassVar[Remedy] = "fix"


class SparkEndedError(TidesinkError):
    """Spark's JVM has ended under a worker, which cannot go on without it."""

    remedy: ClassVar[Remedy] = "retry"


class NotKeptError(TidesinkError):
    """No dead letter, or DDL event, is kept where one was asked for; says what was looked for."""

    remedy: ClassVar[Remedy] = "fix"


class DevStackError(TidesinkError):
    """The local broker or registry cannot start."""

    remedy: ClassVar[Remedy] = "fix"


def shown(value: object, most: int = 80) -> str:
    """The value as Python writes it, of long text or bytes the first ``most`` characters and ``…``."""
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= most else f"{value[:most]!r}…"
    try:
        text = repr(value)
    except RecursionError:
        # orjson reads deeper nested values than Python writes.
        text = f"{type(value).__name__} nested too deep to be shown"
    return text if len(text) <= most else f"{text[:most]}…"


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean x?)``, or an empty text where nothing is near."""
    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def one_of(word: str, known: Iterable[str]) -> str:
    """What to write instead: all known names, or the nearest of many and where the rest is listed."""
    names = sorted(known)
    if len(names) <= _MOST_NAMED:
        return f"use one of {', '.join(names)}"
    near = difflib.get_close_matches(word.lower(), names, n=_NEAREST, cutoff=0)
    return f"use one of {', '.join(near)}, …: docs/configuration.md lists all {len(names)}"
