"""The plan of a routed table: the source's rows with the column that says which shard they are of."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 - Spark's own name for it

from tidesink.config.models import Destination
from tidesink.sinks.batch.decoded_frame import Decode
from tidesink.sinks.batch.records import NO_RULES, EventRules
from tidesink.sinks.decoding_around import ColumnsAround
from tidesink.sinks.routing import routed_shape
from tidesink.typemap.target_schema import TableShape, quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class RoutedColumns(ColumnsAround):
    """A plan whose rows are ``goal``'s; one pass with the plan that it is around."""

    def __init__(self, inner: Decode, goal: Destination) -> None:
        super().__init__(inner)
        self._goal = goal

    @cached_property
    def shape(self) -> TableShape:
        """The shape at the target."""
        return routed_shape(self._inner.shape, self._goal)

    def decode(self, raw: DataFrame, rules: EventRules = NO_RULES) -> DataFrame:
        """The decoded frame; what is no row stays without key and values."""
        decoded = self._inner.decode(raw, rules)
        if self._goal.shard is None:
            return decoded
        return decoded.withColumns({name: self._placed(name) for name in ("key", "old_key", "after")})

    def _placed(self, name: str) -> Column:
        """A struct with the shard in it; null stays null."""
        assert self._goal.shard is not None  # noqa: S101  (asked before)
        return F.col(name).withField(quoted(self._goal.shard.column), F.lit(self._goal.shard.value))
