"""What is wrong with a config, field by field, in words that say what to do."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tidesink.errors import shown as cut

# More names than this are no help on a terminal.
_MOST_NAMED: Final = 12
_NEAREST: Final = 4


class Problem(NamedTuple):
    """One wrong setting: where it stands, what is wrong, what to do."""

    field: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}; {self.remedy}"


Known = Callable[[Iterable[Any]], list[str]]
Words = Callable[[ErrorDetails, str, Known], tuple[str, str]]


def dotted(place: Iterable[str | int]) -> str:
    """A place in the config as ``tables[0].name``."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def nearest(word: str, known: Iterable[str]) -> str:
    """`` (did you mean x?)``, or an empty text where nothing is near."""
    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f" (did you mean {found[0]}?)" if found else ""


def one_of(word: str, known: Iterable[str]) -> str:
    """What to write instead: all that is known, or of much the nearest and where the rest stands."""
    names = sorted(known)
    if len(names) <= _MOST_NAMED:
        return f"use one of {', '.join(names)}"
    near = difflib.get_close_matches(word.lower(), names, n=_NEAREST, cutoff=0)
    return f"use one of {', '.join(near)}, …: docs/configuration.md lists all {len(names)}"


def _unknown(error: ErrorDetails, _shown: str, known: Known) -> tuple[str, str]:
    names, word = known(error["loc"][:-1]), str(error["loc"][-1])
    return f"unknown setting{nearest(word, names)}", one_of(word, names) if names else "remove it"


def _no_such_type(error: ErrorDetails, _shown: str, _known: Known) -> tuple[str, str]:
    named, types = error["ctx"]["tag"], error["ctx"]["expected_tags"].replace("'", "")
    return f"{named} is not allowed{nearest(named, types.split(', '))}", f"use one of {types}"


def _missing(_error: ErrorDetails, _shown: str, _known: Known) -> tuple[str, str]:
    return "required, and not there", "add it"


def _choice(error: ErrorDetails, shown: str, _known: Known) -> tuple[str, str]:
    allowed = error["ctx"]["expected"]
    return f"{shown} is not allowed", f"use {allowed}"


def _number(error: ErrorDetails, shown: str, _known: Known) -> tuple[str, str]:
    remedy = _NUMBERS[error["type"]].format_map(error.get("ctx", {}))
    return f"{shown} is no number this setting takes", remedy


def _form(error: ErrorDetails, shown: str, _known: Known) -> tuple[str, str]:
    return f"{shown} has the wrong form", _FORMS[error["type"]].format_map(error.get("ctx", {}))


def _boolean(_error: ErrorDetails, shown: str, _known: Known) -> tuple[str, str]:
    return f"{shown} is neither true nor false", "use true or false"


def _own(error: ErrorDetails, shown: str, _known: Known) -> tuple[str, str]:
    return f"{shown} is not allowed", str(error["ctx"]["error"])


def _any(_error: ErrorDetails, shown: str, _known: Known) -> tuple[str, str]:
    return f"{shown} has the wrong form", "see tidesink init for an example"


# By pydantic's kinds of errors; its own words are about Python's types, which a config has none of.
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
    "string_type": "give a text",
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
_WORDS: dict[str, Words] = {
    "extra_forbidden": _unknown,
    "missing": _missing,
    "literal_error": _choice,
    "enum": _choice,
    **dict.fromkeys(_NUMBERS, _number),
    **dict.fromkeys(_FORMS, _form),
    "bool_parsing": _boolean,
    "bool_type": _boolean,
    "value_error": _own,
    "union_tag_invalid": _no_such_type,
}


def place_of(error: ErrorDetails) -> tuple[int | str, ...]:
    """Where an error stands in the file: pydantic names the type of a target there too, as a level."""
    place = error["loc"]
    return place[:1] + place[2:] if place[0] == "target" else place


def problems_of(
    error: ValidationError, model: type[BaseModel], *, hidden: Callable[[str], bool]
) -> list[Problem]:
    """Pydantic's findings as Problems. Values of the fields that are ``hidden`` are never shown."""

    def known(place: Iterable[Any]) -> list[str]:
        return _settings_at(model, list(place))

    found = []
    for detail in error.errors(include_url=False):
        named = ("type",) if detail["type"] == "union_tag_invalid" else ()
        field = dotted((*place_of(detail), *named))
        value = detail.get("input")
        shown = "the value" if hidden(field) or isinstance(value, dict | list) else cut(value)
        words: Words = _WORDS.get(detail["type"], _any)
        reason, remedy = words(detail, shown, known)
        found.append(Problem(field, reason, remedy))
    return found


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
