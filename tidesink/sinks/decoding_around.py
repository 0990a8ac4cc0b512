"""What stands around a decoding, or around its plan, and changes a part of it: all else is as inside."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidesink.sinks.offsets import TopicOffsets
from tidesink.sinks.ranges import OffsetRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from tidesink.sinks.batch.decoded_frame import Decode
    from tidesink.sinks.batch.tasks import Fetch, RangeTask
    from tidesink.sinks.decoding import Apart, Decoding, Missed, ToldColumns


class DecodingAround(ABC):
    """A decoding whose plan is around another decoding's."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self._plans: tuple[Decode, Decode] | None = None

    @abstractmethod
    def _around(self, inner: Decode) -> Decode:
        """The plan around one of the decoding inside."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """As the decoding inside."""
        return self._decoding.warnings

    def prepare(self, found: TopicOffsets) -> None:
        """As the decoding inside."""
        self._decoding.prepare(found)

    def catch_up(self, ranges: Sequence[OffsetRange], found: TopicOffsets) -> None:
        """As the decoding inside."""
        self._decoding.catch_up(ranges, found)

    def columns(self) -> Decode:
        """The plan as it stands; the same one for as long as the decoding inside has the same."""
        inner = self._decoding.columns()
        if self._plans is None or self._plans[0] is not inner:
            self._plans = inner, self._around(inner)
        return self._plans[1]

    def range_task(self, _ranges: Sequence[OffsetRange], _fetch: Fetch) -> RangeTask | None:
        """None: what is around the plan is built for the JVM's path."""
        return None

    def told(self) -> ToldColumns | None:
        """As the decoding inside."""
        return self._decoding.told()

    def read_as(self, renamed: Mapping[str, str], held: Mapping[str, str]) -> None:
        """As the decoding inside."""
        self._decoding.read_as(renamed, held)

    def apart(self) -> Apart | None:
        """As the decoding inside."""
        return self._decoding.apart()

    def meet_others(self, missed: Missed) -> None:
        """As the decoding inside."""
        self._decoding.meet_others(missed)

    def learn(self, missed: Missed) -> bool:
        """As the decoding inside."""
        return self._decoding.learn(missed)

    def take_ddl(self, reduced: DataFrame, missed: Missed) -> bool:
        """As the decoding inside."""
        return self._decoding.take_ddl(reduced, missed)


class ColumnsAround:
    """A plan around another one; its shape and its frame are a subclass's."""

    def __init__(self, inner: Decode) -> None:
        self._inner = inner

    @property
    def changes_keys(self) -> bool:
        """As the plan inside."""
        return self._inner.changes_keys

    @property
    def keeps_values(self) -> bool:
        """As the plan inside."""
        return self._inner.keeps_values

    @property
    def kept_columns(self) -> frozenset[str]:
        """As the plan inside."""
        return self._inner.kept_columns

    @property
    def gone(self) -> frozenset[str]:
        """As the plan inside."""
        return self._inner.gone
