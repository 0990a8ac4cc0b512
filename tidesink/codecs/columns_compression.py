"""Compressed values as column expressions: an Arrow function opens those that do not begin as JSON does."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it
from pyspark.sql.pandas.functions import pandas_udf

from tidesink.codecs.compression import LARGEST


def opened(value: Column, *, most: int = LARGEST) -> Column:
    """A canal-json value as it was before it was compressed.

    One that is not compressed, is damaged, or stands for more than ``most`` bytes, stays as it is.
    """

    def plain(values: Any) -> Any:
        import pandas as pd

        return pd.Series([_plain(one, most) for one in values], dtype=object)

    import pandas as pd

    # Spark tells what kind of function it is from these.
    plain.__annotations__ = {"values": pd.Series, "return": pd.Series}
    closed = F.when(~F.startswith(value, F.lit(bytearray(b"{"))), value)
    found: Column = pandas_udf(plain, "binary")(closed)  # type: ignore[call-overload]
    return F.coalesce(found, value)


def _plain(value: bytes | None, most: int) -> bytes | None:
    from tidesink.codecs.compression import decompressed
    from tidesink.errors import FramingError

    try:
        return None if value is None else decompressed(bytes(value), most=most)
    except FramingError:
        return None  # the codec says what is wrong with it
