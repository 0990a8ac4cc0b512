"""Which of a topic's value schemas is in use now, and where the first rows of each stand.

A subject lists its schemas by version. A table that gets an earlier schema again (``ADD COLUMN c; DROP
COLUMN c``) makes no new version: a registry answers the registration with the first id (Confluent's and
Apicurio's). So the newest version is not always the schema in use. The rows of each schema tell.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, Generic, TypeVar

from tidesink.sinks.batch.schema_rows import FirstRows, RowPosition, RowSpan, extreme

# Of how many of the newest schemas the rows are known: of 200 schemas in 100 partitions they took 1 MB.
MOST_SCHEMAS: Final = 50

W = TypeVar("W", bound=Hashable)


class SchemaUse(Generic[W]):
    """The span of the rows that were seen of each schema, by partition.

    ``W`` names a schema: its registry id, or the identity of a debezium-json writer.

    It is a function of the set of rows seen: their order, their cuts into batches, and rows that are read
    again do not count.
    """

    def __init__(self, spans: Mapping[W, Mapping[int, RowSpan]] | None = None) -> None:
        self._spans: dict[W, dict[int, RowSpan]] = {one: dict(rows) for one, rows in (spans or {}).items()}
        self._make_index()

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

    def saw(self, schema_id: W, partition: int, rows: RowSpan) -> bool:
        """Take note of rows of one schema in one partition; False if they cannot change ``order``.

        They cannot if no first row changes, and the schema had the last rows before.
        """
        spans = self._spans.setdefault(schema_id, {})
        known, (_, last_id) = spans.get(partition), self._last.get(partition, (0, schema_id))
        joined = spans[partition] = rows if known is None else rows.joined(known)
        if known == joined:
            return False
        changed = known is None or joined.first != known.first or last_id != schema_id
        for member, values in self._greatest.items():
            value, mine = getattr(rows.last, member), values.get(schema_id)
            if value is not None and (mine is None or value > mine):
                changed = changed or mine is None or mine < max(values.values())
                values[schema_id] = value
        if self._last.get(partition, joined.last)[0] <= joined.last.offset:
            self._last[partition] = (joined.last.offset, schema_id)
        return changed

    def forget_old(self, versions: Sequence[W]) -> None:
        """Forget the rows of all but the newest versions, which bounds what is stored.

        A schema that has the last row of some partition stays. Any other that is forgotten can be in use
        again only by rows that are still to come.
        """
        kept = {*versions[-MOST_SCHEMAS:], *(schema_id for _, schema_id in self._last.values())}
        if self._spans.keys() - kept:
            self._spans = {one: rows for one, rows in self._spans.items() if one in kept}
            self._make_index()

    def _make_index(self) -> None:
        """The last offset of each partition with its schema, and the greatest values of each schema."""
        self._last: dict[int, tuple[int, W]] = {}
        for one, rows in self._spans.items():
            for n, span in rows.items():
                if n not in self._last or self._last[n][0] <= span.last.offset:
                    self._last[n] = (span.last.offset, one)
        self._greatest: dict[str, dict[W, Any]] = {}
        for member in ("source", "time"):
            best = {
                one: extreme(max, *(getattr(span.last, member) for span in rows.values()))
                for one, rows in self._spans.items()
            }
            self._greatest[member] = {one: value for one, value in best.items() if value is not None}

    def first_rows_in(self, versions: Sequence[W]) -> dict[W, FirstRows]:
        """As ``first_rows``, with whether positions are comparable (``started_again``)."""
        comparable = not self.started_again(versions)
        return {one: rows._replace(are_comparable=comparable) for one, rows in self.first_rows.items()}

    def started_again(self, versions: Sequence[W]) -> bool:
        """Whether positions at the source started again: they are of two servers, and not compared.

        A position does not say of which server it is. Of two versions with rows in one partition, the first
        row of the newer one has a lower position than a row before it, either than the first row of the
        older one, or than some row of the older one if all of these are before it. Rows that are sent again
        do not look so, if the partition was read from the first of these rows on: the first copy of each
        row is in the order of positions, and any other has a higher offset.
        """
        seen = [self._spans[one] for one in dict.fromkeys(versions) if one in self._spans]
        numbers = {n for rows in seen for n in rows}
        return any(_started_again([rows[n] for rows in seen if n in rows]) for n in numbers)

    @property
    def first_rows(self) -> dict[W, FirstRows]:
        """By id, the first rows known."""
        return {one: _first_rows(rows) for one, rows in self._spans.items()}

    @property
    def order(self) -> Any:
        """All that the order of the schemas rests on. What is stored need not follow while it stays."""
        numbers = {n for rows in self._spans.values() for n in rows}
        by_offset = [
            sorted((rows[n].last.offset, str(one)) for one, rows in self._spans.items() if n in rows)
            for n in sorted(numbers)
        ]
        greatest = [sorted((at, str(one)) for one, at in best.items()) for best in self._greatest.values()]
        return [[one for _, one in ranked] for ranked in (*by_offset, *greatest)], self.first_rows

    def newest(self, versions: Sequence[W]) -> W:
        """Return the schema in use.

        One schema is later than another by the last rows of both, which are compared

        1. by their greatest positions at the source, if both have one, since a producer that starts again
           sends rows a second time; not if positions started again (``started_again``);
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
        sources = {} if self.started_again(versions) else self._greatest["source"]
        wins = dict.fromkeys(seen, 0)
        for old, new in combinations(seen, 2):
            wins[new if self._is_later(new, old, sources) else old] += 1
        return max(reversed(seen), key=lambda one: wins[one])

    def _is_later(self, new: W, old: W, sources: Mapping[W, Any]) -> bool:
        """Whether a schema is later than one of an older version, as ``newest`` tells."""
        if (found := _is_greater(sources, new, old)) is not None:
            return found
        rows, others = self._spans[new], self._spans[old]
        votes = {rows[n].last.offset > others[n].last.offset for n in rows.keys() & others.keys()}
        if len(votes) == 1:
            return votes == {True}
        found = _is_greater(self._greatest["time"], new, old)
        return True if found is None else found


def _is_greater(values: Mapping[W, Any], one: W, other: W) -> bool | None:
    """None if one of the two has no value, or both the same."""
    mine, theirs = values.get(one), values.get(other)
    return None if mine is None or theirs is None or mine == theirs else bool(mine > theirs)


def _started_again(spans: Sequence[RowSpan]) -> bool:
    """Whether versions, oldest first, contradict each other in one partition."""
    placed = [span for span in spans if span.first.source is not None]
    greatest: tuple[int, ...] | None = None
    for at, span in enumerate(placed):
        is_less = greatest is not None and span.first.source is not None and greatest > span.first.source
        if is_less and any(_contradicts(old, span) for old in placed[:at]):
            return True
        greatest = extreme(max, greatest, span.last.source)
    return False


def _contradicts(old: RowSpan, new: RowSpan) -> bool:
    """Whether a row of the older version has a lower offset than all of the newer, and a greater position."""
    limit = new.first.source
    if limit is None or old.first.source is None or old.last.source is None:
        return False
    return (old.first.offset < new.first.offset and old.first.source > limit) or (
        old.last.offset < new.first.offset and old.last.source > limit
    )


def _first_rows(rows: Mapping[int, RowSpan]) -> FirstRows:
    sources = {n: span.first.source for n, span in sorted(rows.items()) if span.first.source is not None}
    offsets = {n: span.first.offset for n, span in sorted(rows.items())}
    return FirstRows(offsets, min(sources.values(), default=None), sources)


def _values(row: RowPosition) -> list[Any]:
    return [row.offset, row.source and [*row.source], row.time]


def _row(offset: int, source: Iterable[int] | None, time: int | None) -> RowPosition:
    return RowPosition(offset, None if source is None else tuple(source), time)


def _span(
    offset: int, source: Iterable[int] | None, time: int | None, first: Sequence[Any] | None = None
) -> RowSpan:
    last = _row(offset, source, time)
    return RowSpan(last if first is None else _row(*first), last)
