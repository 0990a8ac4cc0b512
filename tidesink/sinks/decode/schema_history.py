"""The order in which a topic's value schemas were in use, and the first rows of each schema.

A subject in the registry lists its schemas by version. If a table returns to an earlier schema (``ADD COLUMN
c; DROP COLUMN c``), no new version is created: Confluent's and Apicurio's registries return the id of the
earlier version. So the newest version is not always the schema in use. The rows that were written with each
schema show which one is in use.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import combinations
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from tidesink.sinks.laws.schema_rows import FirstRows, RowPosition, RowSpan, extreme
from tidesink.sinks.state.documents import DocumentKind

# Number of the newest schemas whose rows are tracked. 200 schemas in 100 partitions took 1 MB.
MOST_SCHEMAS: Final = 50

W = TypeVar("W", bound=Hashable)


class StoredSpan(NamedTuple):
    """The last and the first observed row of a schema in one partition, in the state store.

    The members of the last row (``RowPosition``) are followed by the first row.
    """

    offset: int
    source: tuple[int, ...] | None
    time: int | None
    first: RowPosition


class StoredUse(msgspec.Struct, frozen=True, rename="kebab"):
    """The rows of a topic's schemas, in the state store.

    ``topic_id``: Kafka's id of the topic. ``rows``: by registry id of the schema and by partition.
    """

    topic_id: str
    rows: Mapping[int, Mapping[int, StoredSpan]]


SCHEMA_USE: Final = DocumentKind("schema-use", StoredUse)


class SchemaUse(Generic[W]):
    """The first and the last observed row of each schema, per partition.

    ``W`` is the type of a schema's name: its registry id, or the identity of a debezium-json writer. The
    results depend only on which rows were observed, and not on the order or the batches in which they were
    read, or on how often.
    """

    def __init__(self, spans: Mapping[W, Mapping[int, RowSpan]] | None = None) -> None:
        self._spans: dict[W, dict[int, RowSpan]] = {
            schema_id: dict(rows) for schema_id, rows in (spans or {}).items()
        }
        self._make_index()

    @classmethod
    def restored(cls, stored: Mapping[W, Mapping[int, StoredSpan]]) -> SchemaUse[W]:
        """Restore an object from the rows that ``stored`` returned."""
        return cls(
            {
                schema_id: {
                    n: RowSpan(span.first, RowPosition(span.offset, span.source, span.time))
                    for n, span in rows.items()
                }
                for schema_id, rows in stored.items()
            }
        )

    @property
    def stored(self) -> dict[W, dict[int, StoredSpan]]:
        """The observed rows by schema and partition, to be stored."""
        return {
            schema_id: {n: StoredSpan(*span.last, span.first) for n, span in rows.items()}
            for schema_id, rows in self._spans.items()
        }

    def saw(self, schema_id: W, partition: int, rows: RowSpan) -> bool:
        """Record observed rows of one schema in one partition. Returns True if they may change ``order``.

        They do not change it if they only extend the rows of the schema that already had the last row.
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
        """Forget the rows of all but the ``MOST_SCHEMAS`` newest versions, to limit the stored document.

        A schema that has the last row of a partition is kept. A forgotten schema can come back into use only
        with rows that were not read yet.
        """
        kept_ids = {*versions[-MOST_SCHEMAS:], *(schema_id for _, schema_id in self._last.values())}
        if self._spans.keys() - kept_ids:
            self._spans = {version: rows for version, rows in self._spans.items() if version in kept_ids}
            self._make_index()

    def _make_index(self) -> None:
        """Find the last offset and schema per partition, and the greatest position and time per schema."""
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
        """Returns the first observed rows by schema.

        Their flag ``are_comparable`` is False if source positions restarted (``started_again``).
        """
        comparable = not self.started_again(versions)
        return {
            schema_id: rows._replace(are_comparable=comparable) for schema_id, rows in self.first_rows.items()
        }

    def started_again(self, versions: Sequence[W]) -> bool:
        """Returns True if source positions restarted: two servers wrote them, so they have no common order.

        A position does not name its server. The sign of a restart is a pair of schema versions with rows in
        the same partition: the newer version's first row has a lower position than a row of the older version
        that comes before it. (Of the older version, the first and the last row are compared.)

        Rows that a producer sends a second time do not look like this, if the partition was read from their
        first copies on: the first copies are in the order of positions, and second copies have higher
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
        """All values that decide the order of the schemas, to detect changes of the order.

        As long as these values do not change, the rows need not be stored again.
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
        """Returns the schema that is in use.

        As long as no row of the newest version was observed, that version is in use, because a schema may be
        registered before its DDL. Otherwise every pair of schemas is compared by their last rows, and the
        schema that is later than most others is in use; among several of these, the newest version. The first
        of these values that differs decides which of two schemas is later:

        1. their greatest source positions, if both have one; not used if positions restarted
           (``started_again``). They come first, because a restarted producer sends rows a second time;
        2. their offsets in partitions with rows of both, if all these partitions agree;
        3. their greatest Kafka timestamps, if both have one;
        4. their versions.

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
        """Returns True if the schema ``new`` was in use later than ``old``, by the rules of ``newest``.

        ``new``: the schema with the newer version.
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
    """Returns True if the schema ``one`` has a greater value than the schema ``other``.

    Returns None if one of them has no value, or if their values are equal.
    """
    mine, theirs = values.get(one), values.get(other)
    return None if mine is None or theirs is None or mine == theirs else bool(mine > theirs)


def _started_again(spans: Sequence[RowSpan]) -> bool:
    """Returns True if the rows of one partition show that source positions restarted.

    ``spans``: the first and last rows of each version of the schema, oldest version first.
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
    """Returns True if an old version's row comes before the new version's first row, but is newer.

    That is: it has a lower offset, but a greater source position.
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
