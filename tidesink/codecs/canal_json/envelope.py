"""canal-json's messages as JSON: the objects of a record, their schema, and the tables they name.

``CanalJsonSchema`` says whether a producer conforms to the published JSON Schema of the envelope: TiCDC
classic, its new architecture, and Alibaba's Canal (its FlatMessage).

What a topic says of its tables is found without decoding rows. TiCDC's messages (tiflow c7b2588, ticdc
b813e76) begin with ``id``, ``database`` and ``table``, so that most records are distinguished by their first
bytes, and each distinct beginning is looked at once. A record that does not begin so is parsed. What names
no table, or cannot be read, may be anybody's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.compression import Compression, compression_of, decompressed
from tidesink.codecs.large_messages import LargeMessages
from tidesink.errors import DecodeError, FramingError, SchemaMismatchError, shown
from tidesink.events import Message, TableId

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError


Parsed = dict[str, Any]
Flags = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.int64]

_TEXT: Final = rb'"((?:[^"\\]|\\.)*)"'
_HEAD: Final = re.compile(rb'\{"id":0,"database":' + _TEXT + rb',"table":' + _TEXT + rb",", re.DOTALL)
# What is looked at of each record: names of usual length end before it, and what changes begins behind.
_HEAD_BYTES: Final = 72
_MOST_HEADS: Final = 10_000
_WATERMARK: Final = "TIDB_WATERMARK"
_DDL_MARK: Final = '"isDdl":true'
# Codes of records by their first bytes.
_NO_TABLE: Final = -1
_TO_PARSE: Final = -2


class NamedRecords(NamedTuple):
    """The table that each record names: ``codes`` are indices of ``tables``, -1 for what names none.

    ``strangers``: which records are rows of tables that are not known.
    """

    tables: tuple[TableId, ...]
    codes: Codes
    strangers: Flags

    def own(self, table: TableId) -> Flags:
        """The records that are a table's: what names none is everybody's."""
        return np.array([*(one == table for one in self.tables), True], np.bool_)[self.codes]


@dataclass(frozen=True)
class TableNames:
    """Tells which table a record names. ``known``: the tables that are read at all.

    ``opens_up_to``: values may be compressed, and stand for so many bytes at most; None: they are not.
    """

    known: frozenset[TableId]
    opens_up_to: int | None = None

    def of(self, records: pa.RecordBatch) -> NamedRecords:
        """The tables that Kafka records name."""
        values = records.column("value")
        tables = dict(zip(sorted(self.known), range(len(self.known)), strict=True))
        heads = pc.binary_slice(values, 0, _HEAD_BYTES).dictionary_encode()
        named = (self._in_head(head) for head in heads.dictionary.to_pylist())
        # Of a table that is not known the whole record has to be sound.
        by_head = [_TO_PARSE if one is None else tables.get(one, _TO_PARSE) for one in named]
        codes = np.array([*by_head, _NO_TABLE], np.int64)[_indices(heads)]
        strangers = np.zeros(len(codes), np.bool_)
        for at in np.flatnonzero(codes == _TO_PARSE).tolist():
            parsed = _parsed(self._opened(values[at].as_py()))
            table = _table_of(parsed)
            codes[at] = _NO_TABLE if table is None else tables.setdefault(table, len(tables))
            strangers[at] = table is not None and table not in self.known and _is_row(parsed)
        return NamedRecords(tuple(tables), codes, strangers)

    def _in_head(self, head: bytes) -> TableId | None:
        if head not in self._heads:
            if len(self._heads) >= _MOST_HEADS:
                self._heads.clear()
            self._heads[head] = _table_in(head)
        return self._heads[head]

    @cached_property
    def _heads(self) -> dict[bytes, TableId | None]:
        return {}

    def _opened(self, value: bytes) -> bytes:
        if self.opens_up_to is None or value.startswith(b"{"):
            return value
        try:
            return decompressed(value, most=self.opens_up_to) or value
        except FramingError:
            return b""

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}


# What is asked of the records of a range, whose values are not compressed any more


class Census(NamedTuple):
    """The tables with a row among some records, and how a value is compressed that is not opened."""

    tables: frozenset[TableId]
    compression: Compression


def census(records: Iterator[pa.RecordBatch]) -> Census:
    """The tables that rows name."""
    found: set[TableId] = set()
    compression: Compression = "none"
    for batch in records:
        values = batch.column("value")
        heads = pc.binary_slice(values, 0, _HEAD_BYTES).dictionary_encode()
        named = [_table_in(head) for head in heads.dictionary.to_pylist()]
        for at, code in enumerate(_indices(heads).tolist()):
            if code == len(named) or named[code] in found:
                continue
            value: bytes = values[at].as_py()
            if compression == "none" and not value.startswith(b"{"):
                compression = compression_of(value)
            parsed = _parsed(value)
            table = _table_of(parsed)
            if table is not None and _is_row(parsed):
                found.add(table)
    return Census(frozenset(found), compression)


def marked_ddl(records: Iterator[pa.RecordBatch]) -> list[bytes]:
    """The values that may be DDL events, in their order; a row with these bytes in a value is among them."""
    columns = (batch.column("value") for batch in records)
    return [value for one in columns for value in one.filter(pc.match_substring(one, _DDL_MARK)).to_pylist()]


class RowWords(NamedTuple):
    """What a row says of itself: column names in order, their type words, the key's names; its offset."""

    names: tuple[str, ...]
    types: dict[str, str]
    keys: list[str]
    offset: int


@dataclass(frozen=True)
class RowForms:
    """The forms of a table's rows: of each set of columns, in order, the words of the newest row."""

    table: TableId

    def __call__(self, records: Iterator[pa.RecordBatch]) -> list[RowWords]:
        """One for each form among the records."""
        names = TableNames(frozenset({self.table}))
        rows = (
            (offset, _parsed(value))
            for batch in records
            for offset, value in _valued(batch.filter(pa.array(names.of(batch).own(self.table))))
        )
        return newest_forms(filter(None, (_row_words(offset, parsed) for offset, parsed in rows)))


def newest_forms(words: Iterator[RowWords]) -> list[RowWords]:
    """Of each form the newest."""
    found: dict[tuple[str, ...], RowWords] = {}
    for one in words:
        known = found.get(one.names)
        if known is None or known.offset <= one.offset:
            found[one.names] = one
    return list(found.values())


def _row_words(offset: int, parsed: Any) -> RowWords | None:
    if not _is_row(parsed):
        return None
    data, types, keys = (parsed.get(name) for name in ("data", "mysqlType", "pkNames"))
    first = data[0] if isinstance(data, list) and data else None
    if not isinstance(first, dict):
        return None
    types = types if isinstance(types, dict) else {}
    return RowWords(tuple(first), types, keys if isinstance(keys, list) else [], offset)


def _valued(batch: pa.RecordBatch) -> Iterator[tuple[int, bytes]]:
    pairs = zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
    return ((offset, value) for offset, value in pairs if value is not None)


def _indices(heads: pa.DictionaryArray) -> Codes:
    """The index of each record's head; of a record without a value the number of heads."""
    found: Codes = heads.indices.fill_null(len(heads.dictionary)).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)


def _table_in(head: bytes) -> TableId | None:
    """The table that the first bytes of a record name; None where they do not say it in TiCDC's form."""
    found = _HEAD.match(head)
    if found is None:
        return None
    try:
        schema, name = (json.loads(b'"' + part + b'"') for part in found.groups())
    except ValueError:
        return None
    return TableId(schema, name) if name else None


def _parsed(value: bytes) -> Any:
    """The first object of a value; None where there is none."""
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return _first_object(value)


def _first_object(value: bytes) -> Any:
    """Of several objects, each on a line, the first."""
    try:
        return orjson.loads(value.lstrip().split(b"\n", 1)[0])
    except orjson.JSONDecodeError:
        return None


def _table_of(parsed: Any) -> TableId | None:
    if not isinstance(parsed, dict):
        return None
    schema, name = parsed.get("database") or "", parsed.get("table")
    return TableId(schema, name) if isinstance(schema, str) and isinstance(name, str) and name else None


def _is_row(parsed: Any) -> bool:
    """Whether a message is of a row, and not of a DDL event or a watermark."""
    return isinstance(parsed, dict) and parsed.get("isDdl") is False and parsed.get("type") != _WATERMARK


# The objects of a record, and their schema


def objects(value: bytes | None, large: LargeMessages) -> list[Parsed]:
    """The JSON objects of one record's value, compressed or not, as they were sent.

    Raises:
        DecodeError: no value, a damaged one, or no JSON object.
    """
    if not value:
        raise FramingError("the record has no value: canal-json never writes one without")
    try:
        return [_object(orjson.loads(value))]
    except orjson.JSONDecodeError:
        plain = large.plain(value)
    return _each_line(value if plain is None else plain)


def _each_line(value: bytes) -> list[Parsed]:
    try:
        return [_object(orjson.loads(value))]
    except orjson.JSONDecodeError as error:
        # Inside JSON text a newline is always escaped, so each bare one ends an object.
        lines = [line for line in value.split(b"\n") if line.strip()]
        try:
            if len(lines) > 1:
                return [_object(orjson.loads(line)) for line in lines]
        except orjson.JSONDecodeError:
            pass
        raise FramingError(f"the value is no JSON: {error}; is the topic's protocol canal-json?") from None


def _object(parsed: object) -> Parsed:
    if not isinstance(parsed, dict):
        raise SchemaMismatchError(f"expected a JSON object, not {type(parsed).__name__}")
    return parsed


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
