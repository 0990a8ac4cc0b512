"""The order in which a topic's value schemas were in use, and the first rows of each schema.

A subject lists its schemas by version. If a table returns to an earlier schema (``ADD COLUMN c; DROP COLUMN
c``), no new version is created, because a registry answers the registration with the first id (Confluent's
and Apicurio's). So the newest version is not always the schema in use. The rows of each schema show which
schema is.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, Generic, TypeVar

from tidesink.sinks.batch.schema_rows import FirstRows, RowPosition, RowSpan, extreme

# Number of the newest schemas whose rows are tracked. 200 schemas in 100 partitions took 1 MB.
MOST_SCHEMAS: Final = 50

W = TypeVar("W", bound=Hashable)


class SchemaUse(Generic[W]):
    """The first and the last observed row of each schema, per partition.

    ``W`` identifies a schema: by its registry id, or by the identity of a debezium-json writer. The results
    depend only on which rows were observed. It makes no difference in which order or batches they were read,
    or whether some were read again.
    """

    def __init__(self, spans: Mapping[W, Mapping[int, RowSpan]] | None = None) -> None:
        self._spans: dict[W, dict[int, RowSpan]] = {
            schema_id: dict(rows) for schema_id, rows in (spans or {}).items()
        }
        self._make_index()

    @staticmethod
    def from_document(document: Any) -> SchemaUse[int]:
        """Restore the rows from ``document``.

        Earlier versions stored only last rows, which are used as first rows too.
        """
        return SchemaUse(
            {
                int(schema_id): {int(n): _span(*values) for n, values in rows.items()}
                for schema_id, rows in (document or {}).items()
            }
        )

    @property
    def document(self) -> dict[str, Any]:
        """The rows as a mapping that can be written as JSON."""
        return {
            str(schema_id): {str(n): [*_values(span.last), _values(span.first)] for n, span in rows.items()}
            for schema_id, rows in self._spans.items()
        }

    def saw(self, schema_id: W, partition: int, rows: RowSpan) -> bool:
        """Record observed rows of one schema in one partition. Returns True if they may change ``order``.

        They cannot change it if no first row changes, and the schema already had the last rows.
        """
        spans = self._spans.setdefault(schema_id, {})
        previous, (_, last_id) = spans.get(partition), self._last.get(partition, (0, schema_id))
        joined = spans[partition] = rows if previous is None else rows.joined(previous)
        if previous == joined:
            return False
        changed = previous is None or joined.first != previous.first or last_id != schema_id
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

        A schema that has the last row of a partition is kept. Any other forgotten schema can only come back
        into use with rows that are still unread.
        """
        kept_ids = {*versions[-MOST_SCHEMAS:], *(schema_id for _, schema_id in self._last.values())}
        if self._spans.keys() - kept_ids:
            self._spans = {version: rows for version, rows in self._spans.items() if version in kept_ids}
            self._make_index()

    def _make_index(self) -> None:
        """Index the last offset and schema of each partition, and the greatest position and time of each
        schema.
        """
        self._last: dict[int, tuple[int, W]] = {}
        for schema_id, rows in self._spans.items():
            for n, span in rows.items():
                if n not in self._last or self._last[n][0] <= span.last.offset:
                    self._last[n] = (span.last.offset, schema_id)
        self._greatest: dict[str, dict[W, Any]] = {}
        for member in ("source", "time"):
            best = {
                schema_id: extreme(max, *(getattr(span.last, member) for span in rows.values()))
                for schema_id, rows in self._spans.items()
            }
            self._greatest[member] = {
                schema_id: value for schema_id, value in best.items() if value is not None
            }

    def first_rows_in(self, versions: Sequence[W]) -> dict[W, FirstRows]:
        """Returns the first observed rows by schema, with a flag that shows if source positions can be
        compared.
        """
        comparable = not self.started_again(versions)
        return {
            schema_id: rows._replace(are_comparable=comparable) for schema_id, rows in self.first_rows.items()
        }

    def started_again(self, versions: Sequence[W]) -> bool:
        """Returns True if source positions restarted, because two servers wrote them without a common order.

        A position does not name its server. The sign of a restart is a pair of versions with rows in the same
        partition, where the first row of the newer version has a lower position than an earlier row of the
        older version. That earlier row is the older version's first row, or its last row if all its rows are
        earlier. Rows that a producer sends again do not look like this if the partition was read from the
        first of them on: the first copies of rows are in the order of positions, and later copies have higher
        offsets.
        """
        seen = [self._spans[version] for version in dict.fromkeys(versions) if version in self._spans]
        numbers = {n for rows in seen for n in rows}
        return any(_started_again([rows[n] for rows in seen if n in rows]) for n in numbers)

    @property
    def first_rows(self) -> dict[W, FirstRows]:
        """The first observed rows, by schema."""
        return {schema_id: _first_rows(rows) for schema_id, rows in self._spans.items()}

    @property
    def order(self) -> Any:
        """All values that decide the order of the schemas.

        A stored copy of the rows is current until they change.
        """
        numbers = {n for rows in self._spans.values() for n in rows}
        by_offset = [
            sorted(
                (rows[n].last.offset, str(schema_id)) for schema_id, rows in self._spans.items() if n in rows
            )
            for n in sorted(numbers)
        ]
        greatest = [
            sorted((value, str(schema_id)) for schema_id, value in best.items())
            for best in self._greatest.values()
        ]
        return [[schema_id for _, schema_id in ranked] for ranked in (*by_offset, *greatest)], self.first_rows

    def newest(self, versions: Sequence[W]) -> W:
        """Returns the schema in use.

        Two schemas are compared by their last rows. The first of these values that decides is used:

        1. their greatest source positions, if both have one, because a restarted producer sends rows a second
           time; not used if positions restarted (``started_again``);
        2. their offsets, in partitions with rows of both, if all these partitions agree;
        3. their greatest Kafka timestamps, if both have one;
        4. their versions.

        The schema in use is later than all others. So is a schema with the last row of every partition. If
        the comparisons form a cycle, the schema that is later than most others is used; among several of
        these, the newest version. As long as no row of the newest version was observed, the newest version is
        the schema in use, because a schema may be registered before its DDL.

        Args:
            versions: The schemas, oldest version first; at least one.
        """
        if versions[-1] not in self._spans:
            return versions[-1]
        seen = [version for version in dict.fromkeys(versions) if version in self._spans]
        sources = {} if self.started_again(versions) else self._greatest["source"]
        wins = dict.fromkeys(seen, 0)
        for old, new in combinations(seen, 2):
            wins[new if self._is_later(new, old, sources) else old] += 1
        return max(reversed(seen), key=lambda version: wins[version])

    def _is_later(self, new: W, old: W, sources: Mapping[W, Any]) -> bool:
        """Returns True if schema ``new`` is later than the older version ``old``, by the rules of
        ``newest``.
        """
        if (is_later := _is_greater(sources, new, old)) is not None:
            return is_later
        rows, others = self._spans[new], self._spans[old]
        votes = {rows[n].last.offset > others[n].last.offset for n in rows.keys() & others.keys()}
        if len(votes) == 1:
            return votes == {True}
        is_later = _is_greater(self._greatest["time"], new, old)
        return True if is_later is None else is_later


def _is_greater(values: Mapping[W, Any], one: W, other: W) -> bool | None:
    """Returns True if ``one`` has a greater value than ``other``.

    Returns None if a value is missing or both are equal.
    """
    mine, theirs = values.get(one), values.get(other)
    return None if mine is None or theirs is None or mine == theirs else bool(mine > theirs)


def _started_again(spans: Sequence[RowSpan]) -> bool:
    """Returns True if positions of versions in one partition show a restart.

    ``spans``: the versions' rows, oldest first.
    """
    placed = [span for span in spans if span.first.source is not None]
    greatest: tuple[int, ...] | None = None
    for index, span in enumerate(placed):
        is_less = greatest is not None and span.first.source is not None and greatest > span.first.source
        if is_less and any(_contradicts(old, span) for old in placed[:index]):
            return True
        greatest = extreme(max, greatest, span.last.source)
    return False


def _contradicts(old: RowSpan, new: RowSpan) -> bool:
    """Returns True if a row of the old version has a lower offset, but a greater position than the new
    version's first row.
    """
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
