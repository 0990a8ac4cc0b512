"""A canal-json table's plan follows its topic's DDL, which is read ahead of the rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidesink.change import TableId
from tidesink.codecs.base import CodecOptions
from tidesink.sinks.decoding import Missed
from tidesink.sinks.decoding_canal_json import CanalJsonDecoding
from tidesink.sinks.offsets import PartitionOffsets, TopicOffsets
from tidesink.sinks.summary import BadRecord, BatchSummary, Place
from tidesink.typemap.ddl import TableDefinitions
from tidesink.typemap.shape import ShapeColumn

T = TableId("s", "t")
BAD = BatchSummary(bad=1, bad_records=(BadRecord(Place("cdc", 1), 0, "ValueOutOfRangeError", "odd"),))


class _Ddl:
    """Partition 0 as a list of statements; the offset is the time."""

    def __init__(self, *topic: str) -> None:
        self._topic, self._next = topic, 0
        self._definitions = TableDefinitions()
        self.get, self.former = self._definitions.get, self._definitions.former

    def recall(self, _found: TopicOffsets) -> None:
        pass

    def scan(self, _session: object, found: TopicOffsets) -> bool:
        latest = found.partitions[0].latest
        for at in range(self._next, latest):
            self._definitions.apply(self._topic[at], "s", since=at)
        read, self._next = latest > self._next, max(latest, self._next)
        return read


class _Decoding(CanalJsonDecoding):
    """Whose brokers answer with the end of all there is."""

    ends: int = 0

    def _ends_now(self, _found: TopicOffsets) -> TopicOffsets:
        return _found_at(self.ends)


def _found_at(latest: int) -> TopicOffsets:
    return TopicOffsets("cdc", "id", {0: PartitionOffsets(0, latest), 1: PartitionOffsets(0, 9)})


def _decoding(*topic: str, known: int) -> _Decoding:
    """A decoding of a topic with so many DDL events at first."""
    settings = SimpleNamespace(definition=None, keys=None, zero_date="null", time_zone="UTC", mode="upsert")
    around = SimpleNamespace(
        config=SimpleNamespace(
            table_config=lambda _table: settings, source=SimpleNamespace(codec_options=CodecOptions)
        ),
        topics=SimpleNamespace(ddl=lambda _topic: _Ddl(*topic), tables=lambda _topic: None),
    )
    decoding = _Decoding(cast("Any", around), "cdc", T, session=cast("Any", None))
    decoding.ends = len(topic)
    decoding.prepare(_found_at(known))
    return decoding


def _column(decoding: CanalJsonDecoding, name: str) -> ShapeColumn:
    return decoding.columns().shape.by_name[name]


CREATE = "create table t (id int primary key, e enum('a','b'), n int, d date)"


def test_a_bad_row_may_be_ahead_of_a_ddl_that_came_since_the_brokers_were_asked() -> None:
    """They are asked partition by partition: partition 0 before the DDL, partition 1 after its first row."""
    decoding = _decoding(CREATE, "alter table t modify n bigint", known=1)
    assert _column(decoding, "n").spark == "int"
    assert decoding.learn(Missed(BAD, (), _found_at(1)))
    assert _column(decoding, "n").spark == "bigint"
    assert not decoding.learn(Missed(BAD, (), _found_at(1)))


@pytest.mark.parametrize("gone", ["drop column e, drop column n", "change e f enum('b','a'), drop column n"])
def test_rows_between_a_change_of_type_and_the_drop_are_read_by_the_changed_type(gone: str) -> None:
    alter = "alter table t modify e enum('b','a'), modify n bigint"
    decoding = _decoding(CREATE, alter, f"alter table t {gone}", known=1)
    assert decoding.learn(Missed(BAD, (), _found_at(3)))
    column = _column(decoding, "e")
    assert column.type.members == ("b", "a")
    assert [(was.type.members, was.until) for was in column.earlier] == [(("a", "b"), 1)]
    assert _column(decoding, "n").spark == "bigint"
    assert "e" not in decoding.columns().current


def test_a_dropped_column_whose_type_the_target_cannot_hold_stays_as_it_was() -> None:
    decoding = _decoding(CREATE, "alter table t modify d int", "alter table t drop column d", known=1)
    assert decoding.learn(Missed(BAD, (), _found_at(3)))
    assert _column(decoding, "d").spark == "date"
