"""What a Debezium connector's options say where its records do not.

With a schema a record tells nearly all by itself; without one (``schemas.enable: false``) nothing but
JSON's own types. The names and defaults are Debezium's (3.5), ``decimal_format`` is JsonConverter's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Literal

DecimalHandling = Literal["precise", "string", "double"]
UnsignedHandling = Literal["long", "precise", "string"]
BinaryHandling = Literal["bytes", "base64", "base64-url-safe", "hex"]
TimePrecision = Literal[
    "adaptive",
    "adaptive_time_microseconds",
    "connect",
    "isostring",
    "microseconds",
    "nanoseconds",
]
IntervalHandling = Literal["numeric", "string"]
HstoreHandling = Literal["json", "map"]
DecimalFormat = Literal["base64", "numeric"]

PLACEHOLDER: Final = "__debezium_unavailable_value"


@dataclass(frozen=True)
class DebeziumModes:
    """A connector's handling modes.

    ``time_zone`` is the zone in which a column that a table definition calls TIMESTAMP is written as
    text; every other instant has its offset in its text. The other fields are read only where a record
    has no schema, but for ``binary_handling_mode``, which with a schema too is the only thing that says
    how text in a binary column is to be read, and ``unavailable_value_placeholder``: None is Debezium's own,
    and none at all of a producer that ``sends_every_value``.
    """

    decimal_handling_mode: DecimalHandling = "precise"
    bigint_unsigned_handling_mode: UnsignedHandling = "long"
    binary_handling_mode: BinaryHandling = "bytes"
    time_precision_mode: TimePrecision = "adaptive_time_microseconds"
    interval_handling_mode: IntervalHandling = "numeric"
    hstore_handling_mode: HstoreHandling = "json"
    unavailable_value_placeholder: str | None = None
    time_zone: str = "UTC"
    decimal_format: DecimalFormat = "base64"
    sends_every_value: bool = False

    @property
    def placeholder(self) -> str | None:
        """What stands for a value that was not sent; None where what reads like it is a value."""
        usual = None if self.sends_every_value else PLACEHOLDER
        return usual if self.unavailable_value_placeholder is None else self.unavailable_value_placeholder

    def of_ticdc(self) -> DebeziumModes:
        """What holds for TiCDC's messages, whose records say that they are its own.

        It has these handling modes and no others, and sends every value of a row
        (``pkg/sink/codec/debezium``, b813e76). A placeholder that was given is one there too: tidesink's own
        Kafka target writes it in TiCDC's form.
        """
        given = self.unavailable_value_placeholder
        return replace(_TICDC, time_zone=self.time_zone, unavailable_value_placeholder=given)


_TICDC: Final = DebeziumModes(
    decimal_handling_mode="double", binary_handling_mode="base64", sends_every_value=True
)


class Unavailable(Enum):
    """The type of ``UNAVAILABLE``; an Enum, so that a type checker knows it by ``is``."""

    UNAVAILABLE = "unavailable"

    def __repr__(self) -> str:
        return self.name


UNAVAILABLE: Final = Unavailable.UNAVAILABLE
