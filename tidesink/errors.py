"""Every error that tidesink raises on purpose.

TidesinkError                        .context has the location, .remedy says who acts next
├── ConfigError               fix    a setting is wrong or unknown: key, value, what is allowed
├── DecodeError               reject one record cannot be decoded: dead letter or pause, by policy
│   ├── FramingError                 the bytes before the payload have another form than the codec's
│   ├── SchemaMismatchError          the payload does not have the form of its schema
│   ├── ValueOutOfRangeError         the column's type cannot hold a value
│   ├── UnnamedRowError              a row change does not identify its row
│   ├── ChecksumError                a row differs from its checksum, so it was damaged
│   ├── RowUnavailableError          a row is stored outside its message, and was not found
│   ├── FilterError                  the table's filter cannot be evaluated for a row
│   ├── HorizonError                 a change is older than the deletes that the target still remembers
│   └── UnsupportedMessageError      this version cannot read a form of message yet
├── EncodeError               fix    the codec cannot write an event
├── RegistryError             fix    the registry refuses a request, and would refuse it again
│   ├── SchemaNotFoundError   fix    a schema id, subject or version does not exist
│   ├── UnusableSchemaError   fix    a schema is not Avro, or its references cannot be followed
│   ├── IncompatibleSchemaError stop the registry refuses a schema as incompatible
│   └── RegistryUnavailableError retry  no answer, or HTTP status 408, 429 or 5xx
├── SourceError               stop   Kafka refuses a request, or lost records that are not read yet
│   └── SourceUnavailableError retry the brokers or the source database do not answer
├── TargetError               stop   the target refuses a request
│   ├── TransientTargetError  retry  the target may accept the same batch later
│   ├── CommitUnknownError    re-read progress  the commit may or may not have happened
│   ├── SchemaRefusedError    stop   the target's schema cannot hold the change
│   └── ValueNotStoredError   stop   a stored value should stay, but the target does not have it
├── ProgressError             stop   the stored progress cannot be used
│   ├── StaleProgressError    stop   another worker holds this table, or the target's progress moved back
│   └── MixedPartitionsError  stop   a key arrived in two partitions, so the order of its changes is lost
├── AccountingError           stop   read ≠ applied + superseded + without-row + dead-lettered
├── StateStoreError           retry  the worker's own state store failed
├── NotKeptError              fix    the requested dead letter or DDL event is not stored
└── DevStackError             fix    the local broker or registry cannot start

The meanings of ``remedy``: ``fix`` (a person changes something), ``retry`` (with backoff), ``reject``
(only this record is left out), ``stop`` (this table stops), ``re-read progress`` (call ``committed()`` before
anything else).
"""

from __future__ import annotations

import ast
import difflib
import re
import shlex
from collections.abc import Iterable
from typing import Any, ClassVar, Final, Literal

Remedy = Literal["fix", "retry", "reject", "stop", "re-read progress"]
ContextValue = str | int | None


# Number of known names in a message: all names, or the nearest ones if there are more.
_MOST_NAMED: Final = 12
_NEAREST: Final = 4
# Context keys whose values are in the message already.
_OF_A_CHANGE: Final = frozenset({"change", "before", "after"})


# Advice for a table whose existing rows cannot be continued. The page has the steps.
LOAD_AGAIN: Final = 'load the table again under another name (docs/schema-changes.md, "Load a table again")'

# What happens to the values of a column that is left out from now on.
VALUES_STAY: Final = "values that the target already has stay there, and later changes do not update them"
# Columns that a config must not leave out.
NEEDED_COLUMNS: Final = "unless it is in the key or the filter"
# Advice for a table that can continue without one of its columns.
LEAVE_OUT: Final = f"leave the column out (except_column_list, {NEEDED_COLUMNS}: {VALUES_STAY})"

# A command in a message, up to the word that stands for the table's name.
_NAMELESS: Final = re.compile(r"(\btidesink (?:[a-z][a-z-]* ){1,2})TABLE\b")


def with_table(text: str, table: object) -> str:
    """Return a message in which the suggested commands name the table, quoted for a shell.

    Texts that do not know their table have the word ``TABLE`` there: ``tidesink resync TABLE``.
    """
    name = shlex.quote(str(table))
    return _NAMELESS.sub(lambda match: f"{match[1]}{name}", text)


class StopRequestedError(Exception):
    """A stop was requested while a step waited. The batch is abandoned without a commit; nothing is lost.

    This is not a ``TidesinkError``, because nothing failed.
    """


class TidesinkError(Exception):
    """The base of tidesink's own errors, which report what happened, where, and what to do next.

    ``context`` has any of these keys: topic, partition, offset, table, column, schema_id, subject, url, key.
    It never has a secret. For a schema change it also has ``change`` (its kind), ``before`` and ``after``.
    """

    remedy: ClassVar[Remedy] = "stop"
    # The next step for a person, if the general text of ``remedy`` does not apply.
    next_step: str = ""

    def __init__(self, message: str, **context: ContextValue) -> None:
        super().__init__(message)
        self.message = message
        self.context: dict[str, ContextValue] = {k: v for k, v in context.items() if v is not None}

    def __str__(self) -> str:
        where = self.where()
        return f"{where}: {self.message}" if where else self.message

    def where(self) -> str:
        """Returns the location as ``topic[partition]@offset``, followed by other context; an empty string
        without context.
        """
        rest = {k: v for k, v in self.context.items() if k not in _OF_A_CHANGE}
        topic, partition, offset = (rest.pop(name, None) for name in ("topic", "partition", "offset"))
        place = "" if topic is None else str(topic)
        if partition is not None:
            place += f"[{partition}]@{offset}"
        return " ".join([place, *(f"{k}={v}" for k, v in rest.items())]).strip()

    def with_context(self, **context: ContextValue) -> TidesinkError:
        """Add context to this error, and return the error. Existing context is not replaced."""
        self.context = {**{k: v for k, v in context.items() if v is not None}, **self.context}
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.message, self.context)


def error_text(error: BaseException) -> str:
    """Returns an error's class and message.

    Some Spark errors request their message from the JVM, which may have ended.
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  (whatever fails here, the class is known)
        text = "The message is lost, because Spark's JVM has ended."
    return f"{type(error).__name__}: {text}"


def _restore(cls: type[TidesinkError], message: str, context: dict[str, ContextValue]) -> TidesinkError:
    return cls(message, **context)


# The errors of values that do not have their column's type.
_OF_A_TYPE: Final = frozenset({"SchemaMismatchError", "ValueOutOfRangeError"})
_OF_A_COLUMN: Final = re.compile(r"column ('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"): ")
_TYPE_CHANGED: Final = (
    "If the type of column {0} changed at the source: correct it in the table's definition, or, {1}, add {0} "
    'to except_column_list ({2}). Then {3}. docs/schema-changes.md, "A type that cannot be followed", has '
    "all ways."
)


def bad_reason(error: TidesinkError) -> str:
    """Returns the reason why a record is bad, which begins with the column whose value is wrong, if any."""
    column = error.context.get("column")
    return error.message if column is None else f"column {column!r}: {error.message}"


def type_change_way(error: str, reason: str, then: str) -> str:
    """Returns what to do about a bad record if a column changed its type; empty if no value is the cause.

    ``error``: name of the record's error class. ``reason``: from ``bad_reason``. ``then``: what to do once
    the config is corrected.
    """
    match = _OF_A_COLUMN.match(reason)
    if error not in _OF_A_TYPE or match is None:
        return ""
    return _TYPE_CHANGED.format(ast.literal_eval(match[1]), NEEDED_COLUMNS, VALUES_STAY, then)


class ConfigError(TidesinkError):
    """A setting is wrong or unknown."""

    remedy: ClassVar[Remedy] = "fix"


class DecodeError(TidesinkError):
    """One record cannot be decoded."""

    remedy: ClassVar[Remedy] = "reject"


class FramingError(DecodeError):
    """The bytes before the payload do not have the form that this codec expects."""


class SchemaMismatchError(DecodeError):
    """The payload does not have the form of its schema."""


class ValueOutOfRangeError(DecodeError):
    """A value is outside the range of its column's type."""


class UnnamedRowError(DecodeError):
    """A row change does not identify its row. The message names the producer option that helps."""


class ChecksumError(DecodeError):
    """A row's checksum differs from the checksum that the source sent. The message has both."""


class RowUnavailableError(DecodeError):
    """A row is stored outside its message, and was not found. The message has the next step."""


class HorizonError(DecodeError):
    """A change is so old that the target may have forgotten a later delete of its row.

    The message has the next step.
    """


class FilterError(DecodeError):
    """The table's filter fails for a row, or the row lacks a value that the filter needs.

    The message has the filter.
    """


class UnsupportedMessageError(DecodeError):
    """A message with a row change has a form that this version cannot read yet."""


class EncodeError(TidesinkError):
    """The codec cannot write an event."""

    remedy: ClassVar[Remedy] = "fix"


class RegistryError(TidesinkError):
    """The schema registry refuses a request, and would refuse it again."""

    remedy: ClassVar[Remedy] = "fix"


class SchemaNotFoundError(RegistryError):
    """The schema id, subject or version does not exist."""


class UnusableSchemaError(RegistryError):
    """A schema of the registry cannot be used: it is not Avro, or its references cannot be followed."""


class IncompatibleSchemaError(RegistryError):
    """The registry refuses a schema, because it is not compatible with an earlier version of the subject."""

    remedy: ClassVar[Remedy] = "stop"


class RegistryUnavailableError(RegistryError):
    """The registry does not answer, or asks to retry the request later."""

    remedy: ClassVar[Remedy] = "retry"


class SourceError(TidesinkError):
    """Kafka refuses a request, or no longer has records that are not read yet."""

    remedy: ClassVar[Remedy] = "stop"


class SourceUnavailableError(SourceError):
    """The brokers, the source database or a task that reads rows do not answer."""

    remedy: ClassVar[Remedy] = "retry"


class BrokerUnavailableError(SourceUnavailableError):
    """The Kafka brokers do not answer."""


class TargetError(TidesinkError):
    """The target refuses a request."""


class TransientTargetError(TargetError):
    """The target may accept the same batch later."""

    remedy: ClassVar[Remedy] = "retry"


class CommitUnknownError(TargetError):
    """The commit may or may not have happened. Call ``committed()`` before anything else."""

    remedy: ClassVar[Remedy] = "re-read progress"


class SchemaRefusedError(TargetError):
    """The target's schema cannot hold the change."""


class ValueNotStoredError(TargetError):
    """The source omitted an unchanged value, but the target has no stored value that could stay."""


class ProgressError(TidesinkError):
    """The stored progress cannot be read or cannot be used."""


class StaleProgressError(ProgressError):
    """Another worker holds this table, or the target lost batches that were committed."""


class MixedPartitionsError(ProgressError):
    """A key arrived in two partitions, so Kafka does not define the order of its changes."""


class AccountingError(TidesinkError):
    """The number of rows that were read differs from the number of rows that are accounted for."""


class StateStoreError(TidesinkError):
    """The worker's own state store failed."""

    remedy: ClassVar[Remedy] = "retry"


class UnusableStateStoreError(StateStoreError):
    """The state store's file cannot be opened or written, or a document in it is damaged."""

    remedy: ClassVar[Remedy] = "fix"


class SparkEndedError(TidesinkError):
    """Spark's JVM ended while a worker needs it."""

    remedy: ClassVar[Remedy] = "retry"


class NotKeptError(TidesinkError):
    """The requested dead letter or DDL event is not stored. The message has the request."""

    remedy: ClassVar[Remedy] = "fix"


class DevStackError(TidesinkError):
    """The local broker or registry cannot start."""

    remedy: ClassVar[Remedy] = "fix"


def shown(value: object, most: int = 80) -> str:
    """Returns a value's ``repr``. Text or bytes longer than ``most`` are cut and followed by ``…``."""
    if isinstance(value, str | bytes):
        return repr(value) if len(value) <= most else f"{value[:most]!r}…"
    try:
        text = repr(value)
    except RecursionError:
        # orjson reads values that are nested more deeply than repr() can write.
        text = f"{type(value).__name__} nested too deep to be shown"
    return text if len(text) <= most else f"{text[:most]}…"


def nearest(word: str, known: Iterable[str]) -> str:
    """Returns `` (did you mean x?)`` with the most similar known word, or an empty text if no word is
    similar.
    """
    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def one_of(word: str, known: Iterable[str]) -> str:
    """Returns advice to use a known name.

    It lists all known names. If there are too many, it lists the nearest ones and names the page with all of
    them.
    """
    names = sorted(known)
    if len(names) <= _MOST_NAMED:
        return f"use one of {', '.join(names)}"
    near = difflib.get_close_matches(word.lower(), names, n=_NEAREST, cutoff=0)
    return f"use one of {', '.join(near)}, …: docs/configuration.md lists all {len(names)}"
