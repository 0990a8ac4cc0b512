"""Which canal-json messages the JVM reads by itself, told from their text.

Spark's ``from_json`` is more lenient than the Python codec: it stops at the end of the first object,
makes numbers text, mends invalid UTF-8 and half surrogate pairs. So a message is read in the JVM only
where its text has the very form TiCDC writes (tiflow c7b2588, ticdc b813e76): members in TiCDC's order,
one row, nothing but text and null as values. Such a text means the same to both. Any other message, a
good one or not, is *irregular* and is the Python codec's to judge.

Each pattern goes over a text once and never back: every repetition is possessive, which Java also matches
without recursion, so that a value of megabytes overflows no stack. What from_json refuses by itself, such as
a missing comma, the patterns let pass.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

ROW: Final = "row"

_NUMBER: Final = "[0-9]++"
_TIMESTAMP: Final = "[0-9]{1,19}+"
# A half surrogate pair can only be written as an escape; TiCDC writes no surrogate as one.
_ESCAPE: Final = r"\\(?:[^u]|u[^dD])"
_TEXT: Final = rf'"[^"\\]*+(?:{_ESCAPE}[^"\\]*+)*+"'
_NAME: Final = rf"(?!\"\"){_TEXT}"
_END: Final = r"\}[ \t\r\n]*+\z"
_NOTHING: Final = '"sqlType":null,"mysqlType":null,"data":null,"old":null'


def _members(value: str) -> str:
    """A JSON object whose values are all of one pattern."""
    return rf"\{{(?:{_TEXT}:{value},?+)*+\}}"


def _start(*, database: str, table: str, keys: str, is_ddl: str, kind: str, sql: str) -> str:
    return (
        rf'\A\{{"id":{_NUMBER},"database":{database},"table":{table},"pkNames":{keys},"isDdl":{is_ddl},'
        f'"type":"{kind}","es":{_NUMBER},"ts":{_NUMBER},"sql":{sql},'
    )


def _extension(moment: str) -> str:
    return rf'"_tidb":\{{"{moment}":{_TIMESTAMP}\}}'


_ONE_ROW: Final = rf"(?:null|\[{_members(f'(?:{_TEXT}|null)')}\])"
_ROW_KEY: Final = f'"rowkey":{_TEXT}'
# Of both members of a row's either may be missing, as for the Python codec.
_ROW_EXTENSION: Final = rf'"_tidb":\{{(?:"commitTs":{_TIMESTAMP}(?:,{_ROW_KEY})?+|{_ROW_KEY})\}}'
_ROW: Final = (
    _start(
        database=_NAME,
        table=_NAME,
        keys=rf"\[(?:{_TEXT},?+)*+\]",
        is_ddl="false",
        kind="(?:INSERT|UPDATE|DELETE)",
        sql=_TEXT,
    )
    + rf'"sqlType":{_members("-?+[0-9]++")},"mysqlType":{_members(_TEXT)},"old":{_ONE_ROW},"data":{_ONE_ROW}'
    + rf"(?:,{_ROW_EXTENSION})?+{_END}"
)
_DDL: Final = (
    _start(database=_TEXT, table=_TEXT, keys="null", is_ddl="true", kind="(?!{rows})[A-Z]++", sql=_TEXT)
    + rf"{_NOTHING}(?:,{_extension('commitTs')})?+{_END}"
).replace("{rows}", '(?:INSERT|UPDATE|DELETE)"')
_WATERMARK: Final = (
    _start(database='""', table='""', keys="null", is_ddl="false", kind="TIDB_WATERMARK", sql='""')
    + rf"{_NOTHING},{_extension('watermarkTs')}{_END}"
)


def form_of(text: Column) -> Column:
    """``row``, ``ddl`` or ``watermark`` for a text in TiCDC's form, null for any other."""
    whole = F.is_valid_utf8(text)
    return (
        F.when(whole & text.rlike(_ROW), F.lit(ROW))
        .when(whole & text.rlike(_WATERMARK), F.lit("watermark"))
        .when(whole & text.rlike(_DDL), F.lit("ddl"))
    )
