"""Decimals of more than 38 digits: Spark has no type for them and no expression that can read them.

For such a column alone an Arrow function turns the unscaled bytes into exact text.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql.pandas.functions import pandas_udf


def wide_decimal_text(unscaled: Column, *, precision: int, scale: int) -> Column:
    """The decimal's text at its scale; null where it has more digits than ``precision``."""

    # Defined in here so that executors need no tidesink: what is nested travels by value.
    def text(data: bytes | None) -> str | None:
        if not data:
            return None
        number = int.from_bytes(data, "big", signed=True)
        digits = str(abs(number))
        if len(digits) > precision:
            return None
        digits = digits.rjust(scale + 1, "0")
        sign = "-" if number < 0 else ""
        return sign + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)

    def texts(batch: Any) -> Any:
        return batch.map(text, na_action="ignore")

    import pandas as pd

    # Spark tells what kind of function it is from these.
    texts.__annotations__ = {"batch": pd.Series, "return": pd.Series}
    column: Column = pandas_udf(texts, "string")(unscaled)  # type: ignore[call-overload]
    return column
