"""Building blocks of the config models: field types, references to secrets, and problems.

The field types are durations, sizes, paths, secrets and SQLAlchemy URLs of databases. Only this module
resolves the references ``${env:NAME}`` and ``${file:path}``. A problem describes a wrong setting: its place,
the reason why it is wrong, and the remedy.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.functional_validators import AfterValidator
from pydantic_core import ErrorDetails

from tidesink.ddl.row_changes import RowChangeKind
from tidesink.errors import ConfigError, nearest, one_of
from tidesink.errors import shown as cut
from tidesink.typemap.table import ZeroDate
from tidesink.typemap.target_schema import MetadataKind, default_name

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+)\s*(B|KB|KiB|MB|MiB|GB|GiB)?", re.IGNORECASE)
_BYTES = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}


# A longer duration is a mistake, and would overflow clocks and settings of Kafka and Spark.
LONGEST_SECONDS: Final = 365 * 86400.0
MOST_RECORDS: Final = 10**9
MOST_BYTES: Final = 2**40
MOST_TABLES: Final = 1000

# A URL with an @ in its password. An @ in the user name is allowed.
_AT_IN_PASSWORD: Final = re.compile(r"[^:/]*://[^:/]*:[^@]*@.*@", re.DOTALL)
_PASSWORD: Final = re.compile(r"(://[^:/@]*):.*@")
_QUERY_VALUE: Final = re.compile(r"([?&][^=&]*=)[^&]*")


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Model(BaseModel):
    """Base of the config's sections: immutable, with names in kebab case. Unknown settings are errors."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=_kebab,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


def _duration(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        # A number without a unit could mean seconds or, as in Kafka, milliseconds. 0 means the same in both.
        if value and math.isfinite(value):
            raise ValueError("add a unit: 500ms, 10s, 5m, 1h")
        return float(value)
    match = _DURATION.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("give a number with a unit: 500ms, 10s, 5m, 1h")
    return float(match.group(1)) * _SECONDS[match.group(2)]


def _size(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(str(value).strip())
    if match is None:
        raise ValueError("give a number of bytes, or a number with a unit: 64MiB, 1GB")
    return int(match.group(1)) * _BYTES[(match.group(2) or "B").lower()]


def _counted(value: Any) -> Any:
    # In Python a boolean is an int, and YAML reads `yes` as a boolean.
    if value is True or value is False:
        raise ValueError("give a whole number")
    return value


def _listed(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def beside_config(value: str, info: ValidationInfo) -> str:
    """Resolve a relative path against the folder of the config file; a URL stays unchanged."""
    base: Path | None = (info.context or {}).get("base")
    if base is None or "://" in value:
        return value
    return str(base / Path(value).expanduser())


class RefusedSettingError(ValueError):
    """A validator found a wrong value. The error has a reason and a remedy."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


def _pem_file(path: str) -> str:
    if not Path(path).is_file():  # otherwise a worker would fail hours later
        raise RefusedSettingError("the file does not exist", "give a PEM file")
    return path


def known_database(url: str, *, remedy: str, no_url: str = "is not a SQLAlchemy URL") -> None:
    """Check that SQLAlchemy (if installed) supports the database of a URL, without connecting to it.

    ``remedy``: the error's remedy. ``no_url``: the error's reason if ``url`` is not a URL.

    Raises:
        RefusedSettingError: the URL is wrong or its database is not supported; the message never contains the
            URL.
    """
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError:
        return
    if _AT_IN_PASSWORD.match(url):
        raise RefusedSettingError(
            "has an @ in the password, so a part of the password would be read as the host name",
            "write %40 for each @ in the password, and also percent-encode the characters : / ? # and %",
        )
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # ValueError: a wrong port
        raise RefusedSettingError(no_url, remedy) from None
    try:
        parsed.get_dialect()
    except (NoSuchModuleError, ImportError):
        raise RefusedSettingError(f"SQLAlchemy does not support {parsed.drivername}", remedy) from None


def _state_place(value: str) -> str:
    if "://" in value:
        remedy = "give a path, or a URL such as postgresql+psycopg://user@host/database"
        known_database(value, remedy=remedy, no_url="is neither a path nor a SQLAlchemy URL")
    return value


def read_text(file: Path, shown: str = "") -> str:
    """Read a UTF-8 text file. ``shown``: name of the file in error messages; the default is its path.

    Raises:
        ConfigError: the file cannot be read, or is not UTF-8.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{shown or file} cannot be read: {reason}") from error


def without_secrets(value: str) -> str:
    """Return a state store's location (a path or a database URL) for messages.

    The password and the values after ``?`` in a URL are replaced by ``***``.
    """
    if "://" not in value:
        return value
    return _QUERY_VALUE.sub(r"\1***", _PASSWORD.sub(r"\1:***@", value))


def shown_seconds(value: float) -> str:
    """Format a duration as in a config file."""
    return f"{value:g}s"


_DURATION_TEXT: Final = {"type": "string", "pattern": _DURATION.pattern}
_SHOWN_DURATION: Final = PlainSerializer(shown_seconds, return_type=str, when_used="json")


Duration = Annotated[
    float,
    Field(allow_inf_nan=False, ge=0, le=LONGEST_SECONDS),
    BeforeValidator(_duration),
    WithJsonSchema({"anyOf": [{"const": 0}, _DURATION_TEXT]}),
    _SHOWN_DURATION,
]
PositiveDuration = Annotated[
    float,
    Field(allow_inf_nan=False, gt=0, le=LONGEST_SECONDS),
    BeforeValidator(_duration),
    WithJsonSchema(_DURATION_TEXT),
    _SHOWN_DURATION,
]
ByteSize = Annotated[
    int,
    BeforeValidator(_size),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MOST_BYTES},
                {"type": "string", "pattern": _SIZE.pattern},
            ]
        }
    ),
]
StatePlace = Annotated[
    str,
    AfterValidator(_state_place),
    AfterValidator(beside_config),
    PlainSerializer(without_secrets, return_type=str),
]
LocalPath = Annotated[str, AfterValidator(beside_config)]
PemFile = Annotated[str, AfterValidator(beside_config), AfterValidator(_pem_file)]
# One or several texts, as a list or separated by commas; at least one.
Texts = Annotated[str, Field(pattern=r"^.*[^,\s].*$")] | Annotated[list[str], Field(min_length=1)]
Listed = BeforeValidator(_listed, json_schema_input_type=Texts)
MaybeListed = BeforeValidator(_listed, json_schema_input_type=str | list[str])
Count = Annotated[int, BeforeValidator(_counted)]
# The limits belong to the integer: pydantic leaves those of an optional ``Count`` out of the JSON schema.
TableCount = Annotated[int, Field(ge=1, le=MOST_TABLES), BeforeValidator(_counted)]


def _null_word(value: Any) -> Any:
    # YAML reads null without quotes as no value, but here it is the name of a policy.
    return "null" if value is None else value


NullWord = BeforeValidator(_null_word, json_schema_input_type=ZeroDate | None)


_START_WORDS: Final = ("earliest", "latest")
_START_FORM: Final = "give earliest, latest, or a time with its zone, such as 2026-11-28T10:00:00Z"


def _start(value: Any) -> Any:
    """Return a table's ``start`` in normal form: ``earliest``, ``latest``, or a UTC time in ISO 8601."""
    if value in _START_WORDS or value is None:
        return value
    if isinstance(value, str):
        try:
            # Python 3.10 does not accept the Z.
            value = datetime.fromisoformat(value.strip().removesuffix("Z") + "+00:00" * value.endswith("Z"))
        except ValueError:
            raise ValueError(_START_FORM) from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(_START_FORM)
    return value.astimezone(timezone.utc).isoformat()


def _start_or_offsets(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return _start(value)
    if not value or not all(_is_offset(number) and _is_offset(offset) for number, offset in value.items()):
        raise ValueError("give the first offset of each partition, as in {0: 1200, 1: 980}")
    return dict(value)


def _is_offset(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


Start = Annotated[str, BeforeValidator(_start)]
StartOrOffsets = Annotated[str | dict[int, int], BeforeValidator(_start_or_offsets)]


def _table_name(name: str) -> str:
    schema, dot, table = name.partition(".")
    if not (schema and dot and table):
        raise ValueError("give the table as schema.table")
    return name


def _table_pattern(pattern: str) -> str:
    if "\\" in pattern:
        raise ValueError("give a pattern such as shop.*, not a regular expression: remove the backslash")
    return _table_name(pattern)


# A longer name would not fit into a key of the state store together with a table's name
# (sinks/state/progress.py).
LONGEST_PIPELINE: Final = 128
PipelineName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=LONGEST_PIPELINE)]
TableName = Annotated[str, AfterValidator(_table_name)]
"""The name of one table, ``schema.table``."""
TablePattern = Annotated[str, AfterValidator(_table_pattern)]
"""A pattern for table names, with the wildcards of file name patterns, such as ``shop.*``."""


_NOTHING: Final = object()
_REFERENCE = re.compile(r"\$\{([^}]*)\}")


class Interpolated:
    """A config's data with ``${…}`` references replaced by their values, and the places of the references.

    A setting that becomes empty because its references are empty is omitted, and so is a section with only
    such settings. This way, one config file can be used for brokers with and without a password.
    """

    def __init__(self, data: Any, *, base: Path, environment: Mapping[str, str] | None = None) -> None:
        self._base = base
        self._environment = os.environ if environment is None else environment
        self.problems: list[Problem] = []
        self.places: set[str] = set()
        walked = self._walk(data, ())
        self.data = {} if walked is _NOTHING else walked

    def _walk(self, data: Any, setting_path: tuple[str | int, ...]) -> Any:
        if isinstance(data, dict):
            walked = {key: self._walk(value, (*setting_path, key)) for key, value in data.items()}
            present = {key: value for key, value in walked.items() if value is not _NOTHING}
            return present if present or not data else _NOTHING
        if isinstance(data, list):
            return [self._walk(value, (*setting_path, index)) for index, value in enumerate(data)]
        if isinstance(data, str) and "${" in data:
            return self._resolve(data, setting_path)
        return data

    def _resolve(self, text: str, setting_path: tuple[str | int, ...]) -> Any:
        self.places.add(dotted(setting_path))
        return _REFERENCE.sub(lambda match: self._one(match.group(1), setting_path), text) or _NOTHING

    def _one(self, reference: str, setting_path: tuple[str | int, ...]) -> str:
        kind, _, name = reference.partition(":")
        if kind == "env" and name:
            return self._from_environment(name, setting_path)
        if kind == "file" and name:
            return self._from_file(name, setting_path)
        # The text is not shown, since it may be part of a password.
        self._refuse(
            setting_path, "contains a ${…} that is not a reference", "write ${env:NAME} or ${file:path}"
        )
        return ""

    def _from_environment(self, name: str, setting_path: tuple[str | int, ...]) -> str:
        if name not in self._environment:
            self._refuse(
                setting_path, f"the environment variable {name} is not set", f"set {name}, and try again"
            )
        return self._environment.get(name, "")

    def _from_file(self, name: str, setting_path: tuple[str | int, ...]) -> str:
        path = self._base / Path(name).expanduser()
        try:
            # A secret file usually ends with a newline that an editor added.
            return read_text(path).rstrip("\r\n")
        except ConfigError as error:
            self._refuse(setting_path, error.message, "give a readable file")
            return ""

    def _refuse(self, setting_path: tuple[str | int, ...], what: str, remedy: str) -> None:
        self.problems.append(Problem(dotted(setting_path), what, remedy))


class Problem(NamedTuple):
    """A wrong setting: its place in the config, the reason why it is wrong, and the remedy."""

    field: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}; {self.remedy}"


def dotted(path: Iterable[str | int]) -> str:
    """Format the place of a setting in the config, such as ``tables[0].name``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


# Remedies by pydantic's error type, since pydantic's own messages are about Python types.
_NUMBERS: dict[str, str] = {
    "greater_than": "give a number greater than {gt}",
    "greater_than_equal": "give a number of {ge} or more",
    "less_than_equal": "give a number of {le} or less",
    "finite_number": "give a finite number",
    "int_parsing": "give a whole number",
    "int_parsing_size": "give a smaller whole number",
    "int_from_float": "give a whole number",
    "int_type": "give a whole number",
    "float_parsing": "give a number",
    "float_type": "give a number",
}
_FORMS: dict[str, str] = {
    "string_type": "give a text; quote it if it looks like a number, a date or a boolean",
    "string_too_short": "give at least {min_length} characters",
    "string_too_long": "give at most {max_length} characters",
    "string_pattern_mismatch": "give a text that matches {pattern}",
    "tuple_type": "give a list",
    "list_type": "give a list",
    "dict_type": "give a section of settings (name: value)",
    "model_type": "give a section of settings (name: value)",
    "model_attributes_type": "give a section of settings (name: value)",
    "union_tag_not_found": "give a section of settings (name: value), with a type",
    "too_short": "give at least {min_length} of them",
}
_REMEDIES: dict[str, tuple[str, str]] = {
    "missing": ("required", "add it"),
    "literal_error": ("{shown} is not allowed", "use {expected}"),
    "enum": ("{shown} is not allowed", "use {expected}"),
    "bool_parsing": ("{shown} is neither true nor false", "use true or false"),
    "bool_type": ("{shown} is neither true nor false", "use true or false"),
    "value_error": ("{shown} is not allowed", "{error}"),
    **{kind: ("{shown} is not a valid number", remedy) for kind, remedy in _NUMBERS.items()},
    **{kind: ("{shown} has the wrong form", remedy) for kind, remedy in _FORMS.items()},
}
_ANY_REMEDY: Final = ("{shown} has the wrong form", "run tidesink init to write an example")


def _explained(error: ErrorDetails, shown: str, model: type[BaseModel]) -> tuple[str, str]:
    """Return the reason and the remedy of a Problem for an error of pydantic.

    ``shown``: the wrong value as text, or a replacement if the value may be a secret.
    """
    if error["type"] == "extra_forbidden":
        names, word = _settings_at(model, list(error["loc"][:-1])), str(error["loc"][-1])
        return f"unknown setting{nearest(word, names)}", one_of(word, names) if names else "remove it"
    if error["type"] == "union_tag_invalid":
        named, types = error["ctx"]["tag"], error["ctx"]["expected_tags"].replace("'", "")
        return f"{named} is not allowed{nearest(named, types.split(', '))}", f"use one of {types}"
    refused = error.get("ctx", {}).get("error")
    if isinstance(refused, RefusedSettingError):
        return refused.reason, refused.remedy
    reason, remedy = _REMEDIES.get(error["type"], _ANY_REMEDY)
    return reason.format(shown=shown), remedy.format_map(error.get("ctx", {}))


def place_of(error: ErrorDetails) -> tuple[int | str, ...]:
    """Return the place of pydantic's error in the config.

    Removes the level that pydantic adds below ``target`` for the target's type.
    """
    path = error["loc"]
    return path[:1] + path[2:] if path[0] == "target" else path


def problems_of(error: ValidationError, model: type[BaseModel], *, hidden: Iterable[str]) -> list[Problem]:
    """Convert pydantic's errors to Problems.

    A Problem does not contain the wrong value if the value may be a secret, or if its place is in ``hidden``.
    """
    problems = []
    for detail in error.errors(include_url=False):
        named = ("type",) if detail["type"] == "union_tag_invalid" else ()
        path = (*place_of(detail), *named)
        value = detail.get("input")
        is_hidden = isinstance(value, dict | list) or dotted(path) in hidden or _may_be_secret(model, path)
        problems.append(
            Problem(dotted(path), *_explained(detail, "the value" if is_hidden else cut(value), model))
        )
    return problems


def _may_be_secret(model: type[BaseModel], path: Iterable[str | int]) -> bool:
    """Return True if the value at a place may be a secret, because its type is a secret or is unknown."""
    kinds: list[Any] = [model]
    for part in path:
        if part == "[key]":  # pydantic's place for the name of an entry, which is not a value
            return False
        kinds = [below for kind in kinds for below in _below(kind, part)]
    return not kinds or any(_holds_secret(kind) for kind in kinds)


def _below(kind: Any, part: str | int) -> Iterator[Any]:
    """Yield the possible types of the member ``part`` of a value of the type ``kind``.

    A field that is excluded from the repr counts as a secret.
    """
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            if part in (info.alias, name):
                yield info.annotation if info.repr else SecretStr
    elif get_origin(kind) in (dict, tuple, list):
        yield get_args(kind)[1 if get_origin(kind) is dict else 0]
    else:
        for argument in get_args(kind):
            yield from _below(argument, part)


def _holds_secret(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return any(not info.repr or _holds_secret(info.annotation) for info in kind.model_fields.values())
    return kind is SecretStr or any(map(_holds_secret, get_args(kind)))


def _settings_at(model: type[BaseModel], path: list[Any]) -> list[str]:
    models = [model]
    for part in (part for part in path if not isinstance(part, int)):
        named = [candidate for candidate in models if part in _types_of(candidate)]
        models = named or [
            below for candidate in models for below in _models_in(_annotation(candidate, part))
        ]
    return [info.alias or name for candidate in models[:1] for name, info in candidate.model_fields.items()]


def _types_of(model: type[BaseModel]) -> tuple[Any, ...]:
    """Return the values of the setting ``type`` that choose this model, such as ``delta``; may be empty."""
    return get_args(model.model_fields["type"].annotation) if "type" in model.model_fields else ()


def _annotation(model: type[BaseModel], alias: str) -> Any:
    for name, info in model.model_fields.items():
        if alias in (info.alias, name):
            return info.annotation
    return None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the pydantic models in an annotation such as ``tuple[Table, ...]`` or ``Registry | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models_in(part)


TableMode = Literal["upsert", "append", "history"]


def _no_boolean(value: object) -> object:
    # True equals 1 in Python and would be accepted.
    if isinstance(value, bool):
        raise ValueError("must be 1 or 2")  # noqa: TRY004  (pydantic only converts ValueErrors)
    return value


ScdType = Annotated[Literal[1, 2], BeforeValidator(_no_boolean)]
MODE_OF_SCD_TYPE: Final[Mapping[object, TableMode]] = MappingProxyType({1: "upsert", 2: "history"})
SOFT_DELETE: Final = "soft-delete"
_Words = Literal["upsert", "append", "history", "soft-delete"]
# ``soft-delete`` is replaced by ``normalised_mode`` before the field sees it.
Mode = Annotated[TableMode, BeforeValidator(lambda mode: mode, json_schema_input_type=_Words)]


def normalised_mode(section: Any) -> Any:
    """Replace the other ways to set a table's mode in a section of the config by ``mode`` and ``deletes``.

    The other ways are ``stored_as_scd_type`` and ``mode: soft-delete``.

    Raises:
        ValueError: two settings of the section contradict each other.
    """
    if not isinstance(section, Mapping):
        return section
    normalised = dict(section)
    if normalised.get("mode") == SOFT_DELETE:
        if normalised.get("deletes", "soft") != "soft":
            raise ValueError(
                "mode: soft-delete and deletes: hard contradict each other; remove one of the two"
            )
        normalised |= {"mode": "upsert", "deletes": "soft"}
    number = normalised.get("stored_as_scd_type")
    meant = MODE_OF_SCD_TYPE.get(number) if isinstance(number, int) else None
    if meant is not None and normalised.setdefault("mode", meant) != meant:
        raise ValueError(
            f"stored_as_scd_type: {number} means mode: {meant}, but mode is {normalised['mode']}; remove one"
        )
    return normalised


ChangeKind = Literal["add", "widen", "drop", "rename", "narrow", "nullability", "type", "key", RowChangeKind]
ChangePolicy = Literal["apply", "ignore", "pause"]
# The subcommand of ``tidesink ddl`` that decides a waiting change with a policy.
DDL_COMMANDS: Final[Mapping[str, str]] = MappingProxyType({"apply": "approve", "ignore": "reject"})


# Policies of kinds of schema changes that have no setting in the config.
_FIXED: Final[Mapping[str, ChangePolicy]] = MappingProxyType(
    {
        "nullability": "ignore",  # columns outside the key accept NULL at every target
        "type": "pause",  # no type holds both the old and the new type's values
        "key": "pause",  # stored rows could not be found by the new key columns
    }
)


class SchemaChanges(Model):
    """Policies for changes of the source table's columns, and for DDL that changes the table's rows; see
    `docs/schema-changes.md`."""

    add: Literal["apply", "ignore", "pause"] = "apply"
    """A new column. `apply` adds it, and existing rows get the column's default. `ignore` continues without
    it, so its values are lost. `pause` waits before the first batch that has the column."""
    widen: Literal["apply", "pause"] = "apply"
    """A column type that can hold more values than the target's type. `apply` widens the target's column."""

    drop: Literal["ignore", "apply", "pause"] = "ignore"
    """A column that DDL dropped.

    `ignore` keeps it at the target, with NULL in new rows. `apply` drops it at the target, with all its
    values. Only if the topic has DDL: canal-json."""
    rename: Literal["pause", "apply", "ignore"] = "pause"
    """A column that DDL renamed. `apply` renames it at the target, also for existing rows. `ignore` keeps the
    old column and adds the new one. Only if a topic has DDL: canal-json, and a Debezium connector's
    schema-change topic. With the latter, the new column is added next to the old one, and `apply` starts a
    resync that fills it."""
    narrow: Literal["ignore", "pause"] = "ignore"
    """A column type that can hold fewer values than the target's type. The target's column stays unchanged.
    Only if the topic has DDL: canal-json."""
    truncate: Literal["pause", "apply", "ignore"] = "pause"
    """`TRUNCATE TABLE`. `apply` empties the target's table between the changes before and after it. `ignore`
    leaves the rows in the target. This and the following kinds exist only if a topic has DDL: canal-json, and
    a Debezium connector's schema-change topic, where `apply` starts a resync (`docs/schema-changes.md`)."""
    drop_table: Literal["pause", "apply", "ignore"] = "pause"
    """`DROP TABLE` and `DROP DATABASE`. `apply` empties the target's table, but keeps it for a new table of
    the same name. `ignore` leaves the rows in the target."""
    rename_table: Literal["pause", "ignore"] = "pause"
    """`RENAME TABLE`, for the old and the new name. `ignore` leaves the rows in the target's table of the old
    name."""
    partition: Literal["pause", "ignore"] = "pause"
    """DDL that truncates, drops or exchanges a partition of the table. `ignore` leaves the partition's rows
    in the target."""
    values: Literal["ignore", "pause"] = "ignore"
    """DDL with which the database writes values into existing rows: a new column whose default is computed
    for each row (such as the current time), or a conversion of texts. `ignore` continues with a warning. To
    load the values, run `tidesink resync`."""
    unknown: Literal["pause", "ignore"] = "pause"
    """Other DDL of the table: a statement that tidesink does not know, that changes rows without row events,
    or that restores rows (`RECOVER TABLE`, `FLASHBACK`)."""

    def policy(self, kind: ChangeKind) -> ChangePolicy:
        """Return the policy for a kind of schema change, also for a kind without a setting in the config."""
        change_policy: ChangePolicy = getattr(self, kind.replace("-", "_"), None) or _FIXED[kind]
        return change_policy


def allowed_policies(kind: ChangeKind) -> tuple[ChangePolicy, ...]:
    """Return the policies that are allowed for a kind of schema change, the default first."""
    setting = SchemaChanges.model_fields.get(kind.replace("-", "_"))
    return (_FIXED[kind],) if setting is None else get_args(setting.annotation)


def merged_changes(defaults: SchemaChanges, own: Iterable[SchemaChanges | None]) -> SchemaChanges:
    """Return the schema change policies of a table, merged from several sections of the config.

    Each kind of change has the policy of the first section that sets it. ``own``: the ``schema-changes`` of
    the entries that apply to the table, the most specific entry first. ``defaults``: policies for kinds that
    no entry sets.
    """
    sections = [section for section in own if section is not None]
    given = {
        name: getattr(policies, name) for policies in reversed(sections) for name in policies.model_fields_set
    }
    return defaults.model_copy(update=given)


def _named_kinds(value: Any) -> Any:
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    return {kind: default_name(str(kind)) for kind in value} if isinstance(value, list) else value


Metadata = Annotated[
    dict[MetadataKind, str],
    BeforeValidator(_named_kinds, json_schema_input_type=dict[MetadataKind, str] | list[MetadataKind] | str),
]


_LISTS: Final = ("columns", "except_column_list")


def selection(sections: Sequence[Model]) -> dict[str, Any]:
    """Return ``columns`` and ``except_column_list`` of the first section that sets one of them.

    Both lists come from the same section, because lists of two sections could contradict each other.
    """
    own = ({name: getattr(section, name) for name in _LISTS} for section in sections)
    return next((lists for lists in own if any(value is not None for value in lists.values())), {})


# By setting and value: the other settings that have no effect with it, and their defaults.
_NO_USE: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = MappingProxyType(
    {
        ("mode", "append"): {"sequence_by": "kafka", "deletes": "hard", "ignore_null_updates": False},
        ("mode", "history"): {"deletes": "hard", "ignore_null_updates": False},
        ("sequence_by", "source"): {"ignore_null_updates": False},
    }
)


def without_use(sections: Sequence[Model], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return default values for merged settings that have no effect with a table's mode or order.

    Only returns a default for a setting that comes from a less specific section than the mode or the order:
    such a setting was meant for other tables. A setting from the same or a more specific section keeps its
    value, and ``merged_problems`` reports it. ``sections``: the sections that apply to the table, the most
    specific first. ``settings``: the merged settings.
    """
    defaults: dict[str, Any] = {}
    for (word, value), nothing in _NO_USE.items():
        if settings[word] == value:
            index = _place(sections, word)
            defaults |= {name: as_if for name, as_if in nothing.items() if _place(sections, name) > index}
    return defaults


def _place(sections: Sequence[Model], name: str) -> int:
    """Return the index of the first section that sets ``name``. The last one, ``defaults``, always does."""
    return next(index for index, section in enumerate(sections) if getattr(section, name) is not None)
