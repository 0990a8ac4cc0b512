"""Field types of the config, how secrets are resolved, and how problems are reported.

Field types: durations, sizes, paths, secrets, databases by SQLAlchemy's URLs, and the base of the models.
``${env:NAME}`` and ``${file:path}`` are resolved here and nowhere else. A problem names its field, what is
wrong, and what to do.
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


# A number beyond these is a mistake, and clocks and the numbers of Kafka and Spark overflow.
LONGEST_SECONDS: Final = 365 * 86400.0
MOST_RECORDS: Final = 10**9
MOST_BYTES: Final = 2**40
MOST_TABLES: Final = 1000

# A user's name may hold an @.
_AT_IN_PASSWORD: Final = re.compile(r"[^:/]*://[^:/]*:[^@]*@.*@", re.DOTALL)
_PASSWORD: Final = re.compile(r"(://[^:/@]*):.*@")
_QUERY_VALUE: Final = re.compile(r"([?&][^=&]*=)[^&]*")


def _kebab(name: str) -> str:
    return name.replace("_", "-")


class Model(BaseModel):
    """A frozen section of the config; unknown keys are refused; names are in kebab case."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=_kebab,
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )


def _duration(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        # Seconds to some, milliseconds to Kafka's users; 0 is the same in both.
        if value and math.isfinite(value):
            raise ValueError("give it a unit: 500ms, 10s, 5m, 1h")
        return float(value)
    found = _DURATION.fullmatch(str(value).strip())
    if found is None:
        raise ValueError("give a number with a unit: 500ms, 10s, 5m, 1h")
    return float(found.group(1)) * _SECONDS[found.group(2)]


def _size(value: Any) -> Any:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    found = _SIZE.fullmatch(str(value).strip())
    if found is None:
        raise ValueError("give a number of bytes, or one with a unit: 64MiB, 1GB")
    return int(found.group(1)) * _BYTES[(found.group(2) or "B").lower()]


def _counted(value: Any) -> Any:
    # A boolean is an int to Python, and YAML reads `yes` as one.
    if value is True or value is False:
        raise ValueError("give a whole number")
    return value


def _listed(value: Any) -> Any:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def beside_config(value: str, info: ValidationInfo) -> str:
    """The path read from the config file's own folder; a URL stays as it is."""
    base: Path | None = (info.context or {}).get("base")
    if base is None or "://" in value:
        return value
    return str(base / Path(value).expanduser())


class RefusedSettingError(ValueError):
    """What a validator refuses, with what to do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}; {remedy}")
        self.reason = reason
        self.remedy = remedy


def _pem_file(path: str) -> str:
    if not Path(path).is_file():  # a worker must not find out hours later
        raise RefusedSettingError("there is no such file", "give a PEM file")
    return path


def known_database(url: str, *, remedy: str, no_url: str = "is no SQLAlchemy URL") -> None:
    """Refuse a URL whose database SQLAlchemy, if it is installed, does not know; it connects to nothing.

    Raises:
        RefusedSettingError: its words never hold the URL.
    """
    try:
        from sqlalchemy.engine import make_url
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
    except ImportError:
        return
    if _AT_IN_PASSWORD.match(url):
        raise RefusedSettingError(
            "has an @ behind its password's first @, so that a part of the password would be the host's name",
            "write %40 for each @ in the password, and percent-encode : / ? # and % in it too",
        )
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # ValueError: of the port
        raise RefusedSettingError(no_url, remedy) from None
    try:
        parsed.get_dialect()
    except (NoSuchModuleError, ImportError):
        raise RefusedSettingError(f"SQLAlchemy knows no database {parsed.drivername}", remedy) from None


def _state_place(value: str) -> str:
    if "://" in value:
        remedy = "give a path, or a URL such as postgresql+psycopg://user@host/database"
        known_database(value, remedy=remedy, no_url="is neither a path nor a SQLAlchemy URL")
    return value


def read_text(file: Path, shown: str = "") -> str:
    """The UTF-8 text of a file, which an error names as ``shown``.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{shown or file} cannot be read: {reason}") from error


def without_secrets(value: str) -> str:
    """A path as it is; a database's URL without its password and the values behind ``?``."""
    if "://" not in value:
        return value
    return _QUERY_VALUE.sub(r"\1***", _PASSWORD.sub(r"\1:***@", value))


def shown_seconds(value: float) -> str:
    """A duration as a config file has it."""
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
# One text at least, in either form: every setting of this kind needs one.
Texts = Annotated[str, Field(pattern=r"^.*[^,\s].*$")] | Annotated[list[str], Field(min_length=1)]
Listed = BeforeValidator(_listed, json_schema_input_type=Texts)
MaybeListed = BeforeValidator(_listed, json_schema_input_type=str | list[str])
Count = Annotated[int, BeforeValidator(_counted)]


def _null_word(value: Any) -> Any:
    # YAML reads a bare null as nothing; here it is a policy's name.
    return "null" if value is None else value


NullWord = BeforeValidator(_null_word, json_schema_input_type=ZeroDate | None)


_START_WORDS: Final = ("earliest", "latest")
_START_FORM: Final = "give earliest, latest, or a time with its zone, such as 2026-11-28T10:00:00Z"


def _start(value: Any) -> Any:
    """A start in one form: a word, or a time as ISO text in UTC."""
    if value in _START_WORDS or value is None:
        return value
    if isinstance(value, str):
        try:
            # Python 3.10 does not read the Z.
            value = datetime.fromisoformat(value.strip().removesuffix("Z") + "+00:00" * value.endswith("Z"))
        except ValueError:
            raise ValueError(_START_FORM) from None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ValueError(_START_FORM)
    return value.astimezone(timezone.utc).isoformat()


def _start_or_offsets(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return _start(value)
    if not value or not all(_is_offset(number) and _is_offset(at) for number, at in value.items()):
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
        raise ValueError("it is a pattern such as shop.*, not a regular expression: remove the backslash")
    return _table_name(pattern)


# What fits a key beside a table's name in every database: sinks/state/progress.py.
LONGEST_PIPELINE: Final = 128
PipelineName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=LONGEST_PIPELINE)]
TableName = Annotated[str, AfterValidator(_table_name)]
"""One table, ``schema.table``."""
TablePattern = Annotated[str, AfterValidator(_table_pattern)]
"""Tables that a pattern of file names fits, ``shop.*``."""


_NOTHING: Final = object()
_REFERENCE = re.compile(r"\$\{([^}]*)\}")


class Interpolated:
    """The config's data with references replaced, and where there were any.

    A setting whose references are empty counts as not given, and so does a section that has no other
    setting: one file can then serve brokers with and without a password.
    """

    def __init__(self, data: Any, *, base: Path, environment: Mapping[str, str] | None = None) -> None:
        self._base = base
        self._environment = os.environ if environment is None else environment
        self.problems: list[Problem] = []
        self.places: set[str] = set()
        walked = self._walk(data, ())
        self.data = {} if walked is _NOTHING else walked

    def _walk(self, data: Any, place: tuple[str | int, ...]) -> Any:
        if isinstance(data, dict):
            walked = {key: self._walk(value, (*place, key)) for key, value in data.items()}
            kept = {key: value for key, value in walked.items() if value is not _NOTHING}
            return kept if kept or not data else _NOTHING
        if isinstance(data, list):
            return [self._walk(value, (*place, index)) for index, value in enumerate(data)]
        if isinstance(data, str) and "${" in data:
            return self._resolve(data, place)
        return data

    def _resolve(self, text: str, place: tuple[str | int, ...]) -> Any:
        self.places.add(dotted(place))
        return _REFERENCE.sub(lambda found: self._one(found.group(1), place), text) or _NOTHING

    def _one(self, reference: str, place: tuple[str | int, ...]) -> str:
        kind, _, name = reference.partition(":")
        if kind == "env" and name:
            return self._from_environment(name, place)
        if kind == "file" and name:
            return self._from_file(name, place)
        # It may be part of a password.
        self._refuse(place, "a ${…} in it is not a reference", "write ${env:NAME} or ${file:path}")
        return ""

    def _from_environment(self, name: str, place: tuple[str | int, ...]) -> str:
        if name not in self._environment:
            self._refuse(place, f"the environment has no {name}", f"set {name} before you start")
        return self._environment.get(name, "")

    def _from_file(self, name: str, place: tuple[str | int, ...]) -> str:
        path = self._base / Path(name).expanduser()
        try:
            # A secret file usually ends in the newline of the editor that wrote it.
            return read_text(path).rstrip("\r\n")
        except ConfigError as error:
            self._refuse(place, error.message, "give a readable file")
            return ""

    def _refuse(self, place: tuple[str | int, ...], what: str, remedy: str) -> None:
        self.problems.append(Problem(dotted(place), what, remedy))


class Problem(NamedTuple):
    """One wrong setting: where it stands, what is wrong, what to do."""

    field: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}; {self.remedy}"


def dotted(place: Iterable[str | int]) -> str:
    """A place in the config as ``tables[0].name``."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


# By pydantic's kinds of errors; its own messages are about Python's types, which a config does not have.
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
    "string_type": "give a text: in quotes, if it looks like a number, a date or a boolean",
    "string_too_short": "give at least {min_length} characters",
    "string_too_long": "give at most {max_length} characters",
    "string_pattern_mismatch": "give a text that fits {pattern}",
    "tuple_type": "give a list",
    "list_type": "give a list",
    "dict_type": "give a section of names and values",
    "model_type": "give a section of names and values",
    "model_attributes_type": "give a section of names and values",
    "union_tag_not_found": "give a section of names and values, with a type",
    "too_short": "give at least {min_length}",
}
_REMEDIES: dict[str, tuple[str, str]] = {
    "missing": ("required", "add it"),
    "literal_error": ("{shown} is not allowed", "use {expected}"),
    "enum": ("{shown} is not allowed", "use {expected}"),
    "bool_parsing": ("{shown} is neither true nor false", "use true or false"),
    "bool_type": ("{shown} is neither true nor false", "use true or false"),
    "value_error": ("{shown} is not allowed", "{error}"),
    **{kind: ("{shown} is no number this setting takes", remedy) for kind, remedy in _NUMBERS.items()},
    **{kind: ("{shown} has the wrong form", remedy) for kind, remedy in _FORMS.items()},
}
_ANY_REMEDY: Final = ("{shown} has the wrong form", "see tidesink init for an example")


def _explained(error: ErrorDetails, shown: str, model: type[BaseModel]) -> tuple[str, str]:
    """What is wrong, and what to do; ``shown`` is the value as a message may show it."""
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
    """Where an error stands in the file: pydantic names the type of a target there too, as a level."""
    place = error["loc"]
    return place[:1] + place[2:] if place[0] == "target" else place


def problems_of(error: ValidationError, model: type[BaseModel], *, hidden: Iterable[str]) -> list[Problem]:
    """Pydantic's findings as Problems.

    Values are never shown at the places that are ``hidden``, and where a secret may stand.
    """
    found = []
    for detail in error.errors(include_url=False):
        named = ("type",) if detail["type"] == "union_tag_invalid" else ()
        place = (*place_of(detail), *named)
        value = detail.get("input")
        kept = isinstance(value, dict | list) or dotted(place) in hidden or _may_be_secret(model, place)
        found.append(Problem(dotted(place), *_explained(detail, "the value" if kept else cut(value), model)))
    return found


def _may_be_secret(model: type[BaseModel], place: Iterable[str | int]) -> bool:
    """Whether a value at a place may hold a secret: by the types there, and where no type is known."""
    kinds: list[Any] = [model]
    for part in place:
        if part == "[key]":  # pydantic's word for the name of an entry, where it means no value
            return False
        kinds = [below for kind in kinds for below in _below(kind, part)]
    return not kinds or any(_holds_secret(kind) for kind in kinds)


def _below(kind: Any, part: str | int) -> Iterator[Any]:
    """The types that a member of a value of this type may have; a field without a repr is a secret."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            if part in (info.alias, name):
                yield info.annotation if info.repr else SecretStr
    elif get_origin(kind) in (dict, tuple, list):
        yield get_args(kind)[1 if get_origin(kind) is dict else 0]
    else:
        for one in get_args(kind):
            yield from _below(one, part)


def _holds_secret(kind: Any) -> bool:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return any(not info.repr or _holds_secret(info.annotation) for info in kind.model_fields.values())
    return kind is SecretStr or any(map(_holds_secret, get_args(kind)))


def _settings_at(model: type[BaseModel], place: list[Any]) -> list[str]:
    models = [model]
    for part in (part for part in place if not isinstance(part, int)):
        named = [one for one in models if part in _types_of(one)]
        models = named or [below for one in models for below in _models_in(_annotation(one, part))]
    return [info.alias or name for one in models[:1] for name, info in one.model_fields.items()]


def _types_of(model: type[BaseModel]) -> tuple[Any, ...]:
    """The types by which one of several models of a section is picked."""
    return get_args(model.model_fields["type"].annotation) if "type" in model.model_fields else ()


def _annotation(model: type[BaseModel], alias: str) -> Any:
    for name, info in model.model_fields.items():
        if alias in (info.alias, name):
            return info.annotation
    return None


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in an annotation such as ``tuple[Table, ...]`` or ``Registry | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models_in(part)


TableMode = Literal["upsert", "append", "history"]


def _no_boolean(value: object) -> object:
    # For Python true is 1.
    if isinstance(value, bool):
        raise ValueError("must be 1 or 2")  # noqa: TRY004  (pydantic takes ValueErrors alone)
    return value


ScdType = Annotated[Literal[1, 2], BeforeValidator(_no_boolean)]
MODE_OF_SCD_TYPE: Final[Mapping[object, TableMode]] = MappingProxyType({1: "upsert", 2: "history"})
SOFT_DELETE: Final = "soft-delete"
_Words = Literal["upsert", "append", "history", "soft-delete"]
# ``soft-delete`` is taken apart by ``normalised_mode`` before the field sees it.
Mode = Annotated[TableMode, BeforeValidator(lambda mode: mode, json_schema_input_type=_Words)]


def normalised_mode(section: Any) -> Any:
    """A section of the config with its mode in our words: ``mode`` and ``deletes`` alone say it.

    Raises:
        ValueError: two words of it contradict each other.
    """
    if not isinstance(section, Mapping):
        return section
    found = dict(section)
    if found.get("mode") == SOFT_DELETE:
        if found.get("deletes", "soft") != "soft":
            raise ValueError("mode: soft-delete and deletes: hard contradict each other; remove one")
        found |= {"mode": "upsert", "deletes": "soft"}
    number = found.get("stored_as_scd_type")
    meant = MODE_OF_SCD_TYPE.get(number) if isinstance(number, int) else None
    if meant is not None and found.setdefault("mode", meant) != meant:
        raise ValueError(
            f"stored_as_scd_type: {number} is mode: {meant}, and mode is {found['mode']}; remove one"
        )
    return found


ChangeKind = Literal["add", "widen", "drop", "rename", "narrow", "nullability", "type", "key", RowChangeKind]
ChangePolicy = Literal["apply", "ignore", "pause"]
# The commands of tidesink ddl by which a person chooses a policy for a change that waits.
DDL_COMMANDS: Final[Mapping[str, str]] = MappingProxyType({"apply": "approve", "ignore": "reject"})


# What is done about the kinds of changes that leave no choice.
_FIXED: Final[Mapping[str, ChangePolicy]] = MappingProxyType(
    {
        "nullability": "ignore",  # columns beside the key take NULL at every target
        "type": "pause",  # a type that cannot be one with the target's
        "key": "pause",  # other key columns, under which no row would be found
    }
)


class SchemaChanges(Model):
    """What becomes of a change of the source table's columns, or of DDL that changes its rows; see
    `docs/schema-changes.md`."""

    add: Literal["apply", "ignore", "pause"] = "apply"
    """A new column. `apply` adds it, and rows already there get the default it was added with; `ignore` goes
    on without it: its values are lost; `pause` waits before the first batch of a worker that knows it."""
    widen: Literal["apply", "pause"] = "apply"
    """A type that holds more than the target's: `apply` widens the target's column."""

    drop: Literal["ignore", "apply", "pause"] = "ignore"
    """A column that DDL dropped. `ignore` keeps it at the target, NULL in new rows; `apply` drops it there
    with all its values. Only where the topic tells DDL: canal-json."""
    rename: Literal["pause", "apply", "ignore"] = "pause"
    """A column that DDL renamed. `apply` renames it at the target, and rows from before are read by the new
    name; `ignore` keeps the old column and adds the new one. Only where a topic tells DDL: canal-json, and a
    Debezium connector's schema-change topic, where the new column is one beside the old one, and `apply` has
    a resync fill it."""
    narrow: Literal["ignore", "pause"] = "ignore"
    """A type that holds less than the target's: the target's column stays as it is. Only where the topic
    tells DDL: canal-json."""
    truncate: Literal["pause", "apply", "ignore"] = "pause"
    """`TRUNCATE TABLE`. `apply` empties the target's table at that moment of the source; `ignore` leaves the
    rows there. This and the kinds below only where a topic tells DDL: canal-json, and a Debezium connector's
    schema-change topic, where `apply` has a resync follow (`docs/schema-changes.md`)."""
    drop_table: Literal["pause", "apply", "ignore"] = "pause"
    """`DROP TABLE` and `DROP DATABASE`. `apply` empties the target's table, which stays for a table that is
    made again under the name; `ignore` leaves the rows there."""
    rename_table: Literal["pause", "ignore"] = "pause"
    """`RENAME TABLE`, at the old name and at the new one. `ignore` leaves the rows at the target of the old
    name."""
    partition: Literal["pause", "ignore"] = "pause"
    """A partition that is truncated, dropped or exchanged. `ignore` leaves its rows at the target."""
    values: Literal["ignore", "pause"] = "ignore"
    """Values that the database wrote into rows that were there, when a column was added (a default that is
    computed for each row, the current time) or texts were converted. `ignore` goes on with a warning; a
    resync (`tidesink resync`) brings the values."""
    unknown: Literal["pause", "ignore"] = "pause"
    """A statement about the table that is not understood, that changes rows without row events, or that
    brings rows back (`RECOVER TABLE`, `FLASHBACK`)."""

    def policy(self, kind: ChangeKind) -> ChangePolicy:
        """The policy of a kind; the only one there is where it is no setting."""
        found: ChangePolicy = getattr(self, kind.replace("-", "_"), None) or _FIXED[kind]
        return found


def allowed_policies(kind: ChangeKind) -> tuple[ChangePolicy, ...]:
    """The policies that a kind of change may have, the default first."""
    setting = SchemaChanges.model_fields.get(kind.replace("-", "_"))
    return (_FIXED[kind],) if setting is None else get_args(setting.annotation)


def merged_changes(defaults: SchemaChanges, own: Iterable[SchemaChanges | None]) -> SchemaChanges:
    """The policies of one table, kind by kind: its own sections in order, then the defaults."""
    sections = [section for section in own if section is not None]
    given = {name: getattr(one, name) for one in reversed(sections) for name in one.model_fields_set}
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
    """The lists of the first section that has one: of two lists from two places neither would hold."""
    own = ({name: getattr(section, name) for name in _LISTS} for section in sections)
    return next((found for found in own if any(value is not None for value in found.values())), {})


# A table's mode or order, and the settings that then have their defaults, since they have no effect.
_NO_USE: Final[Mapping[tuple[str, str], Mapping[str, Any]]] = MappingProxyType(
    {
        ("mode", "append"): {"sequence_by": "kafka", "deletes": "hard", "ignore_null_updates": False},
        ("mode", "history"): {"deletes": "hard", "ignore_null_updates": False},
        ("sequence_by", "source"): {"ignore_null_updates": False},
    }
)


def without_use(sections: Sequence[Model], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of merged settings that the table's mode or order makes void.

    ``sections``: what covers the table, the nearest first. A setting is void where a section behind that of
    the mode or order gives it. In the same section or a nearer one it is a contradiction and stays:
    ``merged_problems`` reports it.
    """
    found: dict[str, Any] = {}
    for (word, value), nothing in _NO_USE.items():
        if settings[word] == value:
            at = _place(sections, word)
            found |= {name: as_if for name, as_if in nothing.items() if _place(sections, name) > at}
    return found


def _place(sections: Sequence[Model], name: str) -> int:
    """The first section that has a setting; the last, the defaults, has all."""
    return next(at for at, section in enumerate(sections) if getattr(section, name) is not None)
