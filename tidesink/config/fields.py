"""Field types of the config: durations, sizes, paths, secrets, and the base of its models."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic.functional_validators import AfterValidator

from tidesink.typemap.render import ZeroDate

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


# Beyond these a number is a slip of the pen, and clocks, Kafka's and Spark's numbers overflow.
LONGEST_SECONDS: Final = 365 * 86400.0
MOST_RECORDS: Final = 10**9
MOST_BYTES: Final = 2**40
MOST_TABLES: Final = 1000

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
        # Seconds to some, milliseconds to Kafka's users; nothing is nothing in either.
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
StatePlace = Annotated[str, AfterValidator(beside_config), PlainSerializer(without_secrets, return_type=str)]
LocalPath = Annotated[str, AfterValidator(beside_config)]
# One text at least, in either form: every setting of this kind needs one.
Texts = Annotated[str, Field(pattern=r"^.*[^,\s].*$")] | Annotated[list[str], Field(min_length=1)]
Listed = BeforeValidator(_listed, json_schema_input_type=Texts)
MaybeListed = BeforeValidator(_listed, json_schema_input_type=str | list[str])
Count = Annotated[int, BeforeValidator(_counted)]


def _null_word(value: Any) -> Any:
    # YAML reads a bare null as nothing; here it is a policy's name.
    return "null" if value is None else value


NullWord = BeforeValidator(_null_word, json_schema_input_type=ZeroDate | None)


def _table_name(name: str) -> str:
    schema, dot, table = name.partition(".")
    if not (schema and dot and table):
        raise ValueError("give the table as schema.table")
    return name


def _table_pattern(pattern: str) -> str:
    if "\\" in pattern:
        raise ValueError("it is a pattern as in shop.*, no regular expression: take out the backslash")
    return _table_name(pattern)


# What fits a key beside a table's name in every database: sinks/sql_state_store.py.
LONGEST_PIPELINE: Final = 128
PipelineName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=LONGEST_PIPELINE)]
TableName = Annotated[str, AfterValidator(_table_name)]
"""One table, ``schema.table``."""
TablePattern = Annotated[str, AfterValidator(_table_pattern)]
"""Tables that a pattern of file names fits, ``shop.*``."""
