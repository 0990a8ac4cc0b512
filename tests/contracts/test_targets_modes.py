"""A changefeed through a worker's own task into tables that keep more than the rows of now.

What a reader of the target sees is held to what this file computes from the feed's events, one at a time:
a row of the log for each image, a version for each write of a key, a mark on each row that went.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.contracts.coded_changes import (
    CREATE,
    TABLE,
    Changefeed,
    first_changes,
    placed,
    sent_again,
)
from tests.contracts.coded_table import config_of, open_table
from tests.contracts.conftest import BED_NAMES, MARKS
from tests.contracts.targets_bed import Bed
from tests.full import FULL
from tidesink.codecs.base import CodecOptions
from tidesink.events import ChangeEvent, DdlEvent, Op, Row, TableSchema
from tidesink.sinks.laws.modes import (
    COMMIT_TS,
    FROM_COLUMN,
    INDEX,
    OFFSET,
    OP,
    PARTITION,
    READ_COLUMN,
    TO_COLUMN,
    UNAVAILABLE,
)
from tidesink.sinks.targets.base import SOFT_DELETE_COLUMN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]
# Where the stream is cut, behind a row that was deleted and came back; and where it goes back to from its
# end: that delete, and the last of all.
CUT: Final = 7
AGAIN: Final = (5, -1)
# The event at each offset, DDL too.
Sent = Sequence[ChangeEvent | DdlEvent]


def logged(sent: Sent) -> Rows:
    """``append``: every image of every record, what was sent again too."""
    return [
        {
            PARTITION: 0,
            OFFSET: offset,
            OP: op,
            COMMIT_TS: event.commit_ts,
            UNAVAILABLE: None,
            **image,
        }
        for offset, event in enumerate(sent)
        if isinstance(event, ChangeEvent)
        for op, image in _images(event)
    ]


def _images(event: ChangeEvent) -> Iterator[tuple[str, Row]]:
    words = {Op.INSERT: ("", "insert"), Op.UPDATE: ("update_preimage", "update_postimage")}
    before, after = words.get(event.op, ("delete", ""))
    if before:
        yield before, event.before or {}
    if after:
        yield after, event.after or {}


def versions(sent: Sent) -> Rows:
    """``history``: what each key was from each of its writes to its next event."""
    moments: dict[tuple[Any, Any], dict[int, Row | None]] = {}
    for key, at, row in _writes(sent):
        moments.setdefault(key, {})[at] = row
    return [
        {**row, **_span(start, end)}
        for reported in moments.values()
        for (start, row), end in zip(sorted(reported.items()), [*sorted(reported)[1:], None], strict=True)
        if row is not None
    ]


def _writes(sent: Sent) -> Iterator[tuple[tuple[Any, Any], int, Row | None]]:
    """Of each event the keys it is about, and the row of each afterwards."""
    for event in sent:
        if isinstance(event, ChangeEvent):
            old, new = _key(event.before), _key(event.after)
            assert event.commit_ts is not None
            if old is not None and old != new:
                yield old, event.commit_ts, None
            if new is not None:
                yield new, event.commit_ts, event.after


def _key(row: Row | None) -> tuple[Any, Any] | None:
    return None if row is None else (row["id"], row["key"])


def _span(start: int, end: int | None) -> dict[str, Any]:
    return {
        FROM_COLUMN: start,
        TO_COLUMN: end,
        "valid_from": _time(start),
        "valid_to": None if end is None else _time(end),
        "current": end is None,
        READ_COLUMN: False,
    }


def _time(commit_ts: int) -> datetime:
    return datetime(1970, 1, 1) + timedelta(milliseconds=commit_ts // 2**18)


def marked(sent: Sent) -> Rows:
    """``soft-delete``: the last row of every key, where a batch ended with it.

    A row that came and went within one batch was never there.
    """
    rows: dict[tuple[Any, Any], dict[str, Any]] = {}
    for part in (sent[:CUT], sent[CUT:]):
        last = {key: row for key, _, row in _writes(part)}
        for key, row in last.items():
            if row is not None:
                rows[key] = {**row, SOFT_DELETE_COLUMN: False}
            elif key in rows:
                rows[key] |= {SOFT_DELETE_COLUMN: True}
    return list(rows.values())


MODES: Final[dict[str, Callable[[Sent], Rows]]] = {
    "append": logged,
    "history": versions,
    "soft-delete": marked,
}
ORDER: Final = {
    "append": (OFFSET, INDEX),
    "history": ("id", "key", FROM_COLUMN),
    "soft-delete": ("id", "key"),
}
# Other tests have workers write the other targets in these modes, but for a log on Delta.
_ALWAYS: Final = {("delta", "append"), ("iceberg", "history"), ("mysql", "soft-delete")}
PAIRS: Final = [
    pytest.param(name, mode, marks=[*MARKS.get(name, ()), *(() if (name, mode) in _ALWAYS else (FULL,))])
    for name in BED_NAMES
    for mode in MODES
]


def _changes() -> Changefeed:
    """A feed of canal-json, which tells both images of each change."""
    options = CodecOptions(enable_tidb_extension=True)
    feed = Changefeed("canal-json", TableSchema(TABLE, ()), options=options)
    feed.define(CREATE)
    first_changes(feed)
    feed.put(4, 0, "last", 40, "it's")
    feed.delete(3, 0)
    return feed


@pytest.mark.parametrize(("bed", "mode"), PAIRS, indirect=["bed"])
def test_a_reader_sees_what_the_events_say(bed: Bed, mode: str, spark: SparkSession, tmp_path: Path) -> None:
    can = bed.target.capabilities
    if ("soft-deletes" if mode == "soft-delete" else mode) not in can.features:
        pytest.skip(f"{bed.name} has no mode {mode}, and says so")
    feed = _changes()
    messages, sent = placed(sent_again(feed.records, *AGAIN)), sent_again(feed.events, *AGAIN)
    config = config_of(feed, mode=mode)
    table = open_table(bed, spark, tmp_path, feed=feed, messages=messages, config=config)
    with table.table_task() as table_task:
        table.take(table_task, CUT)
    with table.table_task() as table_task:
        table.take(table_task, len(messages))
    found = sorted(bed.read(TABLE), key=lambda row: [row[name] for name in ORDER[mode]])
    places = [row.pop(INDEX, None) for row in found]
    assert mode != "append" or set(places) == {0, 1}
    expected = MODES[mode](sent)
    if mode != "append":
        expected.sort(key=lambda row: [row[name] for name in ORDER[mode]])
    assert found == expected
