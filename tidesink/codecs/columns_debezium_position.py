"""Where a change stands at its source, as text (``Position.source_text``), out of a decoded source block.

The rules are ``debezium_source``'s, and so are their sources. MongoDB's documents are Python's to read. A
Microsoft or Db2 LSN has more digits than Spark's numbers: an Arrow function reads it, in plans alone whose
writers have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.pandas.functions import pandas_udf

from tidesink.codecs.columns_faults import null
from tidesink.codecs.columns_types import try_cast
from tidesink.codecs.debezium.envelope import POSTGRES, STREAMED, TICDC, lsn_number
from tidesink.events import SOURCE_SEPARATOR

Source = Mapping[str, Column]

_CONNECTOR: Final = "connector"
# What is asked of a source block for it, beside the connector and TiDB's commit_ts.
POSITION_MEMBERS: Final = (
    "snapshot",
    "file",
    "pos",
    "row",
    "lsn",
    "scn",
    "commit_scn",
    "commit_lsn",
    "change_lsn",
    "event_serial_no",
)
_WRAP: Final = Decimal(2**64)


class _Rule(NamedTuple):
    """``needs``: the members without which there is no position."""

    connectors: tuple[str, ...]
    needs: tuple[str, ...]
    position: Callable[[Source], Column]


def position_of(source: Source) -> Column:
    """The position's text, of the members that some writer's source block has, each as text.

    Null where nothing tells.
    """
    told = [
        F.when(source[_CONNECTOR].isin(*rule.connectors), rule.position(source))
        for rule in _RULES
        if source.keys() >= {_CONNECTOR, *rule.needs}
    ]
    return F.coalesce(*told, null("string"))


def _binlog(source: Source) -> Column:
    file = _digits(source["file"], r"\.(?=[0-9]{1,18}\z)0*([0-9]+)\z")
    return _joined(file, _whole(source["pos"]), _or_zero(source, "row"))


def _event_lsn(source: Source) -> Column:
    return F.when(_is_streamed(source), _whole(source["lsn"]))


def _scn(source: Source) -> Column:
    return F.when(_is_streamed(source), _joined(_whole(source["scn"]), _or_zero(source, "commit_scn")))


def _commit_lsn(source: Source) -> Column:
    change = F.coalesce(_lsn(source["change_lsn"]), F.lit("0")) if "change_lsn" in source else F.lit("0")
    return _joined(_lsn(source["commit_lsn"]), change, _or_zero(source, "event_serial_no"))


def _commit_ts(source: Source) -> Column:
    """TiDB's timestamps are unsigned; a long has the largest as negative numbers."""
    number = try_cast(source["commit_ts"], "decimal(20,0)")
    return (number + F.when(number < 0, F.lit(_WRAP)).otherwise(0)).cast("string")


def _joined(*numbers: Column) -> Column:
    """Null where one of them is."""
    parts = [part for number in numbers for part in (F.lit(SOURCE_SEPARATOR), number)]
    return F.concat(*parts[1:])


def _is_streamed(source: Source) -> Column:
    if "snapshot" not in source:
        return F.lit(True)
    words = [word for word in STREAMED if isinstance(word, str)]
    return F.coalesce(source["snapshot"].isin(*words), F.lit(True))


def _or_zero(source: Source, member: str) -> Column:
    return F.coalesce(_whole(source[member]), F.lit("0")) if member in source else F.lit("0")


def _whole(number: Column) -> Column:
    return _digits(number, r"\A(?=[0-9]{1,38}\z)0*([0-9]+)\z")


def _digits(text: Column, pattern: str) -> Column:
    return F.nullif(F.regexp_extract(text, pattern, 1), F.lit(""))


def _lsn(lsn: Column) -> Column:
    def numbers(batch: Any) -> Any:
        return batch.map(_lsn_text, na_action="ignore").astype(object)

    import pandas as pd

    # Spark tells what kind of function it is from these.
    numbers.__annotations__ = {"batch": pd.Series, "return": pd.Series}
    column: Column = pandas_udf(numbers, "string")(lsn)  # type: ignore[call-overload]
    return column


def _lsn_text(lsn: str) -> str | None:
    number = lsn_number(lsn)
    return None if number is None else str(number)


_RULES: Final = (
    _Rule(("mysql", "mariadb"), ("file", "pos"), _binlog),
    _Rule((POSTGRES,), ("lsn",), _event_lsn),
    _Rule(("oracle",), ("scn",), _scn),
    _Rule(("sqlserver", "db2"), ("commit_lsn",), _commit_lsn),
    _Rule((TICDC,), ("commit_ts",), _commit_ts),
)
