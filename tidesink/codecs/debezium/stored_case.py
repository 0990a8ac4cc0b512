"""What is known where a value that was read from the database becomes the value of a record."""

from __future__ import annotations

from typing import NamedTuple

from tidesink.codecs.base import DebeziumModes
from tidesink.events import Column, ColumnType
from tidesink.typemap.table import Reader, row_of


class Case(NamedTuple):
    """A column of the database, and the type of the values that the table's records have of it.

    ``bare``: the records have no schemas.
    """

    stored: Column
    type: ColumnType
    modes: DebeziumModes
    is_ticdc: bool
    bare: bool = False

    @property
    def reader(self) -> Reader:
        return row_of(self.type).reader

    @property
    def in_milliseconds(self) -> bool:
        """Whether times are cut to milliseconds: a schema of Kafka Connect's own type says so too."""
        local = self.type.name in ("local time", "local datetime") and self.type.fsp == 3
        return not self.is_ticdc and (local or self.modes.time_precision_mode == "connect")

    @property
    def in_iso(self) -> bool:
        """Whether times are text of ISO 8601."""
        return not self.is_ticdc and self.modes.time_precision_mode == "isostring"

    @property
    def in_a_day(self) -> bool:
        """Whether a TIME has to be one of a day."""
        return self.in_iso or self.in_milliseconds
