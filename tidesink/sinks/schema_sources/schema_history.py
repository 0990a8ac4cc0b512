"""In which order a topic's value schemas were in use, and which of them is in use now.

A subject lists its schemas by version. A table that gets an earlier schema again (``ADD COLUMN c; DROP
COLUMN c``) makes no new version: a registry answers the registration with the first id (Confluent's and
Apicurio's). So the newest version is not always the schema in use. The rows tell: a schema is in use again
once a row of it is later than every row of the newest version.

Rows are compared by their positions at the source where both have one, since a producer that starts again
sends rows a second time. Without positions rows of one partition are compared by offset, and others by
Kafka's time. Where nothing compares them, the newest version stays the schema in use. So it does as long as
no row of it was seen: a schema may be registered before the DDL that it is for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tidesink.sinks.batch.counts import LastRow

Rows = dict[int, LastRow]


class SchemaUse:
    """The last rows that were seen of each schema, by registry id and partition."""

    def __init__(self, last: Mapping[int, Rows] | None = None) -> None:
        self._last: dict[int, Rows] = {one: dict(rows) for one, rows in (last or {}).items()}

    @classmethod
    def from_document(cls, found: Any) -> SchemaUse:
        """Read ``document`` back."""
        return cls(
            {
                int(one): {int(n): _row(*values) for n, values in rows.items()}
                for one, rows in (found or {}).items()
            }
        )

    @property
    def document(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            str(one): {
                str(n): [row.offset, row.source and [*row.source], row.time] for n, row in rows.items()
            }
            for one, rows in self._last.items()
        }

    def saw(self, schema_id: int, partition: int, row: LastRow) -> None:
        """Take note of a row. Rows that are read again change nothing."""
        rows = self._last.setdefault(schema_id, {})
        known = rows.get(partition, row)
        source = max((one.source for one in (known, row) if one.source is not None), default=None)
        time = max((one.time for one in (known, row) if one.time is not None), default=None)
        rows[partition] = LastRow(max(known.offset, row.offset), source, time)

    def newest(self, versions: Sequence[int]) -> int:
        """Return the schema in use; ``versions``: the ids, oldest version first."""
        best = versions[-1]
        for one in dict.fromkeys(versions):
            if one != best and self._is_later(one, best):
                best = one
        return best

    def _is_later(self, one: int, other: int) -> bool:
        """Whether the last row of one schema is later than every row of another."""
        rows, others = self._last.get(one), self._last.get(other)
        if not rows or not others:
            return False
        mine, theirs = _greatest(rows, "source"), _greatest(others, "source")
        if mine is not None and theirs is not None:
            return bool(mine > theirs)
        shared = [rows[n].offset > others[n].offset for n in rows.keys() & others.keys()]
        if shared:
            return all(shared)
        mine, theirs = _greatest(rows, "time"), _greatest(others, "time")
        return mine is not None and theirs is not None and bool(mine > theirs)


def _row(offset: int, source: Iterable[int] | None, time: int | None) -> LastRow:
    return LastRow(offset, None if source is None else tuple(source), time)


def _greatest(rows: Rows, member: str) -> Any:
    found = (getattr(row, member) for row in rows.values())
    return max((one for one in found if one is not None), default=None)
