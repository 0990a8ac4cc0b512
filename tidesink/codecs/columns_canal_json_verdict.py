"""The Python codec's word on messages that the JVM does not read by itself.

Only irregular messages (``columns_canal_json_text``) reach the Arrow function; what it finds good it
writes again in the form the JVM reads, one row a text. Rows that were cut down to their handle key are made
whole here, on the executors: from claim-check storage, or from the upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import lru_cache
from typing import Any, Final

from pyspark.sql import Column
from pyspark.sql.pandas.functions import pandas_udf

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.large_messages import LargeMessages
from tidesink.errors import ConfigError, DecodeError, FramingError, SourceUnavailableError
from tidesink.events import Column as TableColumn
from tidesink.events import Message, Op, TableSchema
from tidesink.typemap.target_schema import TableShape

_VERDICT: Final = "struct<error: string, reason: string, texts: array<string>>"
_LAST_ES: Final = (1 << 63) - 1
_ROW_TYPES: Final = frozenset({Op.INSERT.name, Op.UPDATE.name, Op.DELETE.name})

# Errors that are not the record's: it may well be good.
NOT_THE_RECORDS: Final = (SourceUnavailableError, ConfigError)
_NOT_OPENED: Final = (
    "the value is compressed: set source.large-message-handle-compression as the changefeed has it"
)

Verdict = tuple[str | None, str | None, list[str] | None]
_NO_VERDICT: Final[Verdict] = (None, None, None)


def verdict(value: Column, irregular: Column, shape: TableShape, *, options: CodecOptions) -> Column:
    """What Python says of an irregular record's value: an error with its reason, or regular texts."""

    def verdicts(values: Any, asked: Any) -> Any:
        import pandas as pd

        judge = open_judge(shape, options) if asked.any() else None
        found = [
            judge(value) if judge is not None and wanted else _NO_VERDICT
            for value, wanted in zip(values, asked, strict=True)
        ]
        return pd.DataFrame(found, columns=["error", "reason", "texts"])

    import pandas as pd

    # Spark tells what kind of function it is from these.
    verdicts.__annotations__ = {"values": pd.Series, "asked": pd.Series, "return": pd.DataFrame}
    column: Column = pandas_udf(verdicts, _VERDICT)(value, irregular)  # type: ignore[call-overload]
    return column


@lru_cache(maxsize=8)
def _large_messages(options: CodecOptions) -> LargeMessages:
    # Kept with its connections while the executor's Python process lives.
    return LargeMessages(options)


def open_judge(shape: TableShape, options: CodecOptions) -> Callable[[bytes | None], Verdict]:
    """A function that judges values of one table, by the Python codec with the shape's types.

    What is still compressed here was not opened before (``columns_compression``), and is refused.
    """
    from tidesink.codecs.canal_json.codec import CanalJsonReader
    from tidesink.codecs.canal_json.schema import RowShapes
    from tidesink.ddl.catalog import TableDefinitions

    large = _large_messages(options)
    definitions = TableDefinitions([_schema(shape)])
    # Types are the plan's: a DDL in a message changes none of them.
    reader = CanalJsonReader(RowShapes(definitions, {shape.table: shape.keys}), lambda _ddl: None, large)

    def judge(value: bytes | None) -> Verdict:
        message = Message("", 0, 0, None, value if value is None else bytes(value))
        try:
            if message.value and large.plain(message.value) is not None:
                raise FramingError(_NOT_OPENED)
            texts = []
            for parsed in reader.objects(message.value):
                kept = deepcopy(parsed)  # reading uses the object up
                reader.read(parsed, message, [])
                texts += _texts(kept, shape)
        except (DecodeError, *NOT_THE_RECORDS) as error:
            return type(error).__name__, error.message, None
        return None, None, texts

    return judge


def _schema(shape: TableShape) -> TableSchema:
    return TableSchema(
        shape.table,
        tuple(
            TableColumn(
                column.name,
                column.type,
                default=column.default,
                handle=column.key,
                earlier=column.earlier,
            )
            for column in shape.columns
        ),
    )


def _texts(parsed: Mapping[str, Any], shape: TableShape) -> list[str]:
    """An object that was read without an error, in TiCDC's form: one text a row."""
    kind = parsed["type"]
    if kind in _ROW_TYPES and parsed.get("isDdl") is not True:
        rows = parsed["data"]
        old = parsed["old"] if kind == Op.UPDATE.name else [None] * len(rows)
        return [_row_text(parsed, row, before, shape) for row, before in zip(rows, old, strict=True)]
    return [_control_text(parsed, kind)]


def _row_text(parsed: Mapping[str, Any], row: Any, before: Any, shape: TableShape) -> str:
    start = _start(
        parsed["database"], parsed["table"], "[]", is_ddl="false", kind=parsed["type"], es=_es(parsed)
    )
    types = _dump(_spelt(parsed.get("mysqlType") or {}, shape))
    # One row key names one row: of several in a message it would make one.
    row_key = _row_key(parsed) if len(parsed["data"]) == 1 else ""
    old = "null" if before is None else f"[{_dump(_spelt(before, shape))}]"
    data = _dump(_spelt(row, shape))
    return (
        f'{start},"sql":"","sqlType":{{}},"mysqlType":{types},"old":{old},"data":[{data}]'
        f"{_extension(parsed, 'commitTs', row_key)}}}"
    )


def _row_key(parsed: Mapping[str, Any]) -> str:
    """The member of ``_tidb`` that names a row."""
    text = (parsed.get("_tidb") or {}).get("rowkey")
    return f'"rowkey":{_dump(text)}' if type(text) is str else ""


def _spelt(row: Mapping[str, Any], shape: TableShape) -> dict[str, Any]:
    """The row with its columns' names as the shape spells them."""
    names = {column.name.casefold(): column.name for column in shape.columns}
    return {names.get(name.casefold(), name): value for name, value in row.items()}


def _control_text(parsed: Mapping[str, Any], kind: str) -> str:
    rest = '"sqlType":null,"mysqlType":null,"data":null,"old":null'
    if kind == "TIDB_WATERMARK":
        start = _start("", "", "null", is_ddl="false", kind=kind)
        return f'{start},"sql":"",{rest}{_extension(parsed, "watermarkTs")}}}'
    start = _start(parsed["database"], parsed["table"], "null", is_ddl="true", kind="QUERY")
    return f'{start},"sql":{_dump(parsed["sql"])},{rest}{_extension(parsed, "commitTs")}}}'


def _es(parsed: Mapping[str, Any]) -> int:
    """The row's ms since 1970; later than all where it says none, as for the Python codec."""
    es = parsed.get("es")
    return min(es, _LAST_ES) if type(es) is int and es >= 0 else _LAST_ES


def _start(database: str, table: str, keys: str, *, is_ddl: str, kind: str, es: int = 0) -> str:
    return (
        f'{{"id":0,"database":{_dump(database)},"table":{_dump(table)},"pkNames":{keys},'
        f'"isDdl":{is_ddl},"type":"{kind}","es":{es},"ts":0'
    )


def _extension(parsed: Mapping[str, Any], member: str, more: str = "") -> str:
    moment = (parsed.get("_tidb") or {}).get(member)
    members = ",".join(one for one in ("" if moment is None else f'"{member}":{moment}', more) if one)
    return f',"_tidb":{{{members}}}' if members else ""


def _dump(value: object) -> str:
    import orjson

    return orjson.dumps(value).decode()
