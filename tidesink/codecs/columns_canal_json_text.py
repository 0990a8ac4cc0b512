"""Which canal-json messages the JVM reads by itself, told from their text.

Spark's ``from_json`` is more lenient than the Python codec: it stops at the end of the first object,
makes numbers text, mends invalid UTF-8 and half surrogate pairs. So a message is read in the JVM only
where its text has the very form TiCDC writes (tiflow c7b2588, ticdc b813e76): members in TiCDC's order,
one row, nothing but text and null as values. Such a text means the same to both. Any other message, a
good one or not, is *irregular* and is the Python codec's to judge.

The patterns repeat character classes alone, never groups: Java matches a repeated group by recursion,
and a long value would overflow its stack.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

ROW: Final = "row"

_NUMBER: Final = "[0-9]++"
_TIMESTAMP: Final = "[0-9]{1,19}"
_TEXT: Final = '"[^"]*+"'
_NAME: Final = '"[^"]++"'
_END: Final = r"\}[ \t\r\n]*+\z"
_NOTHING: Final = '"sqlType":null,"mysqlType":null,"data":null,"old":null'


def _start(*, database: str, table: str, keys: str, is_ddl: str, kind: str, sql: str) -> str:
    return (
        rf'\A\{{"id":{_NUMBER},"database":{database},"table":{table},"pkNames":{keys},"isDdl":{is_ddl},'
        f'"type":"{kind}","es":{_NUMBER},"ts":{_NUMBER},"sql":{sql},'
    )


_ROW: Final = (
    "(?s)"
    + _start(
        database=_NAME,
        table=_NAME,
        keys=r"\[[^\[\]]*+\]",
        is_ddl="false",
        kind="(?:INSERT|UPDATE|DELETE)",
        sql=_TEXT,
    )
    + r'"sqlType":\{[^{}]*+\},"mysqlType":\{.*(?:null|\}\])'
    + rf'(?:,"_tidb":\{{"commitTs":{_TIMESTAMP}(?:,"rowkey":{_TEXT})?\}})?{_END}'
)
_DDL: Final = (
    _start(database=_TEXT, table=_TEXT, keys="null", is_ddl="true", kind="(?!{rows})[A-Z]++", sql=_TEXT)
    + rf'{_NOTHING}(?:,"_tidb":\{{"commitTs":{_TIMESTAMP}\}})?{_END}'
).replace("{rows}", '(?:INSERT|UPDATE|DELETE)"')
_WATERMARK: Final = (
    _start(database='""', table='""', keys="null", is_ddl="false", kind="TIDB_WATERMARK", sql='""')
    + rf'{_NOTHING},"_tidb":\{{"watermarkTs":{_TIMESTAMP}\}}{_END}'
)
# The same with every text as one letter: what stands where a value may stand.
_ROWS_OR_NULL: Final = r"s:(?:null|\[\{[s:,nul]*+\}\])"
_BONES: Final = (
    r"\A\{[s:,0-9]*+\[[s,]*+\],s:false[s:,0-9]*+\{[s:,0-9-]*+\},s:\{[s:,]*+\},"
    rf"{_ROWS_OR_NULL},{_ROWS_OR_NULL}(?:,s:\{{[s:,0-9]*+\}})?{_END}"
)


def bare_text(text: Column) -> Column:
    """A JSON text without its escaped backslashes and quotes: each quote left begins or ends a text."""
    backslash = "\\"
    plain = F.replace(text, F.lit(backslash * 2), F.lit(""))
    return F.replace(plain, F.lit(backslash + '"'), F.lit(""))


def form_of(text: Column, bare: Column) -> Column:
    """``row``, ``ddl`` or ``watermark`` for a text in TiCDC's form, null for any other."""
    bones = F.regexp_replace(bare, F.lit(_TEXT), F.lit("s"))
    # A half surrogate pair can only be written as an escape.
    whole = F.is_valid_utf8(text) & ~F.contains(text, F.lit("\\ud")) & ~F.contains(text, F.lit("\\uD"))
    rows = whole & bare.rlike(_ROW) & bones.rlike(_BONES)
    return (
        F.when(rows, F.lit(ROW))
        .when(whole & bare.rlike(_WATERMARK), F.lit("watermark"))
        .when(whole & bare.rlike(_DDL), F.lit("ddl"))
    )
