"""The value schema of a topic that is in use, and the first rows of each schema.

A subject lists its schemas by version. A table that returns to an earlier schema (``ADD COLUMN c; DROP
COLUMN c``) creates no new version: a registry answers the registration with the first id (Confluent's and
Apicurio's). So the newest version is not always the schema in use. The rows of each schema show which one is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, Generic, TypeVar

from tidesink.sinks.batch.schema_rows import FirstRows, RowPosition, RowSpan, extreme

# Rows are tracked for so many of the newest schemas: 200 schemas in 100 partitions took 1 MB.
MOST_SCHEMAS: Final = 50

W = TypeVar("W", bound=Hashable)


class SchemaUse(Generic[W]):
    """The span of observed rows of each schema, per partition.

    ``W`` identifies a schema: its registry id, or the identity of a debezium-json writer.

    The result depends only on the set of observed rows. Their order, their batches and rows that are read
    again make no difference.
    """

    def __init__(self, spans: Mapping[W, Mapping[int, RowSpan]] | None = None) -> None:
        self._spans: dict[W, dict[int, RowSpan]] = {one: dict(rows) for one, rows in (spans or {}).items()}
        self._make_index()

    @staticmethod
    def from_document(found: Any) -> SchemaUse[int]:
        """Restore from ``document``. Earlier versions stored only last rows; they count as first rows too."""
        return SchemaUse(
            {
                int(one): {int(n): _span(*values) for n, values in rows.items()}
                for one, rows in (found or {}).items()
            }
        )

    @property
    def document(self) -> dict[str, Any]:
        """The spans as JSON."""
        return {
            str(one): {str(n): [*_values(span.last), _values(span.first)] for n, span in rows.items()}
            for one, rows in self._spans.items()
        }

    def saw(self, schema_id: W, partition: int, rows: RowSpan) -> bool:
        """Record rows of one schema in one partition. Returns False if they cannot change ``order``.

        They cannot change it if no first row changes, and the schema had the last rows already.
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
        """Forget the rows of all but the newest versions, which limits the size of the stored document.

        A schema that has the last row of some partition stays. Any other forgotten schema can come into use
        again only with rows that are still to be read.
        """
        kept = {*versions[-MOST_SCHEMAS:], *(schema_id for _, schema_id in self._last.values())}
        if self._spans.keys() - kept:
            self._spans = {one: rows for one, rows in self._spans.items() if one in kept}
            self._make_index()

    def _make_index(self) -> None:
        """Index the last offset and schema of each partition, and the greatest values of each schema."""
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
        """Returns ``first_rows``, with a flag for comparable positions (``started_again``)."""
        comparable = not self.started_again(versions)
        return {one: rows._replace(are_comparable=comparable) for one, rows in self.first_rows.items()}

    def started_again(self, versions: Sequence[W]) -> bool:
        """Returns True if source positions started again. Two servers wrote them, without a common order.

        A position does not name its server. The sign is a pair of versions with rows in one partition, where
        the first row of the newer version has a lower position than an earlier row of the older version: its
        first row, or its last row if all its rows are earlier. Rows that are sent again do not look like
        this, if the partition was read from the first of these rows on: the first copies of rows are in the
        order of positions, and other copies have higher offsets.
        """
        seen = [self._spans[one] for one in dict.fromkeys(versions) if one in self._spans]
        numbers = {n for rows in seen for n in rows}
        return any(_started_again([rows[n] for rows in seen if n in rows]) for n in numbers)

    @property
    def first_rows(self) -> dict[W, FirstRows]:
        """The first observed rows, by schema."""
        return {one: _first_rows(rows) for one, rows in self._spans.items()}

    @property
    def order(self) -> Any:
        """All values that decide the order of the schemas.

        A stored copy is current while this is unchanged.
        """
        numbers = {n for rows in self._spans.values() for n in rows}
        by_offset = [
            sorted((rows[n].last.offset, str(one)) for one, rows in self._spans.items() if n in rows)
            for n in sorted(numbers)
        ]
        greatest = [sorted((at, str(one)) for one, at in best.items()) for best in self._greatest.values()]
        return [[one for _, one in ranked] for ranked in (*by_offset, *greatest)], self.first_rows

    def newest(self, versions: Sequence[W]) -> W:
        """Returns the schema in use.

        Two schemas are compared by their last rows. The following values decide, in this order:

        1. their greatest source positions, if both have one, because a restarted producer sends rows a second
           time; not used if positions started again (``started_again``);
        2. their offsets, in partitions with rows of both, if all these partitions agree;
        3. their greatest Kafka timestamps, if both have one;
        4. their versions.

        The schema in use is later than all others. A schema with the last row of every partition is in use
        too. If the comparisons form a circle, the schema that is later than most others is in use, and among
        several the newest version. The newest version is in use as long as none of its rows was observed,
        because a schema may be registered before its DDL.

        Args:
            versions: The schemas, oldest version first; at least one.
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
        """Returns True if a schema is later than an older version's, by the rules of ``newest``."""
        if (found := _is_greater(sources, new, old)) is not None:
            return found
        rows, others = self._spans[new], self._spans[old]
        votes = {rows[n].last.offset > others[n].last.offset for n in rows.keys() & others.keys()}
        if len(votes) == 1:
            return votes == {True}
        found = _is_greater(self._greatest["time"], new, old)
        return True if found is None else found


def _is_greater(values: Mapping[W, Any], one: W, other: W) -> bool | None:
    """Returns None if one of the two has no value, or both have the same."""
    mine, theirs = values.get(one), values.get(other)
    return None if mine is None or theirs is None or mine == theirs else bool(mine > theirs)


def _started_again(spans: Sequence[RowSpan]) -> bool:
    """Returns True if versions, oldest first, contradict each other in one partition."""
    placed = [span for span in spans if span.first.source is not None]
    greatest: tuple[int, ...] | None = None
    for at, span in enumerate(placed):
        is_less = greatest is not None and span.first.source is not None and greatest > span.first.source
        if is_less and any(_contradicts(old, span) for old in placed[:at]):
            return True
        greatest = extreme(max, greatest, span.last.source)
    return False


def _contradicts(old: RowSpan, new: RowSpan) -> bool:
    """Returns True if an old version's row has a lower offset than all newer rows and a greater position."""
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
