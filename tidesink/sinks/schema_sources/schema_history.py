"""Which of a topic's value schemas is in use now, and where the first rows of each stand.

A subject lists its schemas by version. A table that gets an earlier schema again (``ADD COLUMN c; DROP
COLUMN c``) makes no new version: a registry answers the registration with the first id (Confluent's and
Apicurio's). So the newest version is not always the schema in use. The rows of each schema tell.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tidesink.sinks.batch.schema_rows import FirstRows, RowPosition, RowSpan

W = TypeVar("W", bound=Hashable)


class SchemaUse(Generic[W]):
    """The span of the rows that were seen of each schema, by partition.

    ``W`` names a schema: its registry id, or the identity of a debezium-json writer.

    It is a function of the set of rows seen: their order, their cuts into batches, and rows that are read
    again do not count.
    """

    def __init__(self, spans: Mapping[W, Mapping[int, RowSpan]] | None = None) -> None:
        self._spans: dict[W, dict[int, RowSpan]] = {one: dict(rows) for one, rows in (spans or {}).items()}

    @staticmethod
    def from_document(found: Any) -> SchemaUse[int]:
        """Read ``document`` back. Earlier versions kept the last rows alone: they count as the first too."""
        return SchemaUse(
            {
                int(one): {int(n): _span(*values) for n, values in rows.items()}
                for one, rows in (found or {}).items()
            }
        )

    @property
    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            str(one): {str(n): [*_values(span.last), _values(span.first)] for n, span in rows.items()}
            for one, rows in self._spans.items()
        }

    def saw(self, schema_id: W, partition: int, rows: RowSpan) -> None:
        """Take note of rows of one schema in one partition."""
        spans = self._spans.setdefault(schema_id, {})
        spans[partition] = rows.joined(spans.get(partition, rows))

    @property
    def first_rows(self) -> dict[W, FirstRows]:
        """By id, the first rows known."""
        return {
            one: FirstRows(
                {n: span.first.offset for n, span in sorted(rows.items())},
                _best(min, (span.first.source for span in rows.values())),
            )
            for one, rows in self._spans.items()
        }

    @property
    def order(self) -> Any:
        """All that the order of the schemas rests on. What is stored need not follow while it stays."""
        numbers = {n for rows in self._spans.values() for n in rows}
        by_offset = [
            sorted((rows[n].last.offset, str(one)) for one, rows in self._spans.items() if n in rows)
            for n in sorted(numbers)
        ]
        greatest = [
            sorted((at, str(one)) for one in self._spans if (at := self._greatest(one, member)) is not None)
            for member in ("source", "time")
        ]
        return [[one for _, one in ranked] for ranked in (*by_offset, *greatest)], self.first_rows

    def newest(self, versions: Sequence[W]) -> W:
        """Return the schema in use.

        One schema is later than another by the last rows of both, which are compared

        1. by their greatest positions at the source, if both have one: a producer that starts again sends
           rows a second time;
        2. by their offsets, in the partitions that have rows of both, if these agree;
        3. by their greatest times of Kafka's, if both have one;
        4. by their versions.

        The schema in use is later than all others. So is the one whose row is the last in each partition. If
        the comparisons lead around in a circle, it is the one that is later than most others, and of several
        the newest version. The newest version is in use as long as no row of it was seen: a schema may be
        registered before the DDL that it is for.

        Args:
            versions: The ids, oldest version first; at least one.
        """
        if versions[-1] not in self._spans:
            return versions[-1]
        seen = [one for one in dict.fromkeys(versions) if one in self._spans]
        wins = {one: sum(self._is_later(one, other, seen) for other in seen) for one in seen}
        return max(seen, key=lambda one: (wins[one], seen.index(one)))

    def _is_later(self, one: W, other: W, versions: Sequence[W]) -> bool:
        """Whether a schema is later than another, as ``newest`` tells."""
        rows, others = self._spans[one], self._spans[other]
        mine, theirs = self._greatest(one, "source"), self._greatest(other, "source")
        if mine is not None and theirs is not None and mine != theirs:
            return bool(mine > theirs)
        votes = {rows[n].last.offset > others[n].last.offset for n in rows.keys() & others.keys()}
        if len(votes) == 1:
            return votes == {True}
        mine, theirs = self._greatest(one, "time"), self._greatest(other, "time")
        if mine is not None and theirs is not None and mine != theirs:
            return bool(mine > theirs)
        return versions.index(one) > versions.index(other)

    def _greatest(self, schema_id: W, member: str) -> Any:
        return _best(max, (getattr(span.last, member) for span in self._spans[schema_id].values()))


def _best(choose: Any, values: Iterable[Any]) -> Any:
    return choose((one for one in values if one is not None), default=None)


def _values(row: RowPosition) -> list[Any]:
    return [row.offset, row.source and [*row.source], row.time]


def _row(offset: int, source: Iterable[int] | None, time: int | None) -> RowPosition:
    return RowPosition(offset, None if source is None else tuple(source), time)


def _span(
    offset: int, source: Iterable[int] | None, time: int | None, first: Sequence[Any] | None = None
) -> RowSpan:
    last = _row(offset, source, time)
    return RowSpan(last if first is None else _row(*first), last)
