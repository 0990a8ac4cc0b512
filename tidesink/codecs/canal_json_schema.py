"""The published JSON Schema of canal-json's envelope, and messages checked against it.

Decoding is lenient where nothing can go wrong; this says whether a producer keeps to the form: TiCDC classic
(tiflow c7b2588), its new architecture (b813e76), and Alibaba's Canal (its FlatMessage).
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.canal_json_decode import objects
from tidesink.codecs.large_messages import LargeMessages
from tidesink.errors import DecodeError, SchemaMismatchError, shown
from tidesink.events import Message

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

_FILE: Final = "canal-json.schema.json"
_PLAIN_NAME: Final = re.compile(r"\w+")


def canal_json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of one canal-json object."""
    text = (files("tidesink.codecs") / "schemas" / _FILE).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


class CanalJsonSchema:
    """Checks messages against the schema; compressed ones are opened, claim-check files are not fetched."""

    def __init__(self, options: CodecOptions | None = None) -> None:
        self._large = LargeMessages(options or CodecOptions())

    def check(self, message: Message) -> None:
        """Nothing where the message has the form of canal-json.

        Raises:
            SchemaMismatchError: it has not; the reason has the JSON path of the first wrong member.
            FramingError: no JSON at all; context has topic, partition, offset.
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
            raise SchemaMismatchError(f"{_path(worst)}: {_reason(worst)}, by {_FILE}")

    @cached_property
    def _validator(self) -> Draft202012Validator:
        from jsonschema import Draft202012Validator

        return Draft202012Validator(canal_json_schema())


def _path(error: ValidationError) -> str:
    """``$.data[0].id``; a name with other characters stands in quotes."""
    path = "$"
    for part in error.absolute_path:
        plain = f".{part}" if _PLAIN_NAME.fullmatch(str(part)) else f"[{shown(part)}]"
        path += f"[{part}]" if isinstance(part, int) else plain
    return path


def _reason(error: ValidationError) -> str:
    """What is wrong in our words: jsonschema's own quote the whole value, which may be a row."""
    keyword = str(error.validator)
    wanted: Any = error.validator_value
    value: Any = error.instance
    if keyword == "required":
        return f"{', '.join(repr(name) for name in wanted if name not in value)} is missing"
    if keyword == "additionalProperties" and isinstance(value, dict):
        known = canal_json_schema()["$defs"]["extension"]["properties"]  # the only closed object
        unknown = sorted(value.keys() - known.keys())
        return f"{', '.join(map(shown, unknown))} is unknown there"
    words = _WORDS.get(keyword, f"breaks the rule {keyword}")
    what = f"the {_KINDS[type(value)]} there" if isinstance(value, dict | list) else _json_text(value)
    return f"{what} {words.format(wanted=_listed(wanted))}"


def _json_text(value: Any) -> str:
    return shown(value) if isinstance(value, str) else json.dumps(value)


def _listed(wanted: Any) -> str:
    if isinstance(wanted, list):
        return " or ".join(map(str, wanted))
    return wanted if isinstance(wanted, str) else json.dumps(wanted)


_KINDS: Final[dict[type, str]] = {dict: "object", list: "array"}
_WORDS: Final = {
    "type": "is not of the type {wanted}",
    "enum": "is not one of {wanted}",
    "const": "must be {wanted}",
    "minLength": "is empty",
    "minItems": "is empty",
    "minimum": "is below {wanted}",
    "maximum": "is above {wanted}",
    "uniqueItems": "names a column twice",
}
