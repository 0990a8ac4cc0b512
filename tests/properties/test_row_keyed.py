"""L5: a table without a key is a multiset, by TiDB's row keys: k identical inserts and a delete leave k-1."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.targets_bed import progress
from tests.memory_target import MemoryTarget
from tests.multisets import OPTIONS, SCHEMA, Copies, again, change, copies, history, messages
from tests.reduction_law import reduce
from tidesink.codecs.canal_json.codec import CanalJsonCodec, keyed_by_row
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import ChangeEvent, Row, SequenceBy
from tidesink.sinks.targets.base import ReducedBatch, ReducedRow
from tidesink.typemap.target_schema import RowKey, row_keyed, shape_of

SHAPE = row_keyed(shape_of(SCHEMA))
seeds, sizes = st.integers(0, 1 << 32), st.integers(1, 40)


class _Kept:
    """The table in memory: each batch is decoded from bytes, reduced and applied."""

    def __init__(self) -> None:
        self._target = MemoryTarget()
        self._table = self._target.open_table(SHAPE, pipeline="shop")
        self._epoch = self._table.claim().epoch
        self._codec = CanalJsonCodec(options=OPTIONS, definitions=TableDefinitions([SCHEMA]))
        self._batch = 0

    def apply(self, events: Sequence[ChangeEvent], sequence_by: SequenceBy = "kafka") -> None:
        decoded = [event for message in messages(events) for event in self._codec.decode(message)]
        reduced = reduce(
            (keyed_by_row(e) for e in decoded if isinstance(e, ChangeEvent)), SHAPE.keys, sequence_by
        )
        rows = [
            ReducedRow(
                "delete" if kept.row is None else "upsert", dict(zip(SHAPE.keys, key, strict=True)), kept.row
            )
            for key, kept in reduced.rows.items()
        ]
        self._batch += 1
        batch = ReducedBatch(SHAPE, len(reduced.upserts), len(reduced.deletes), rows=rows)
        self._table.apply(batch, progress(self._epoch, self._batch, table=SHAPE.table))

    @property
    def copies(self) -> Copies:
        return copies(self._target.rows(SHAPE.table))


@pytest.mark.law("L5")
@given(seeds, sizes, st.lists(st.integers(0, 40), max_size=4), st.lists(st.integers(0, 40), max_size=2))
def test_a_multiset_is_kept_however_the_stream_is_cut_and_sent_again(
    seed: int, size: int, cuts: list[int], starts: list[int]
) -> None:
    events, expected = history(Random(seed), size)
    stream = again(events, *(min(start, size) for start in starts))
    edges = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    kept = _Kept()
    for start, end in pairwise(edges):
        kept.apply(stream[start:end])
    assert kept.copies == expected


@pytest.mark.law("L5")
@given(seeds, sizes, st.randoms(use_true_random=False))
def test_in_the_sources_order_events_may_come_in_any_order(seed: int, size: int, random: Random) -> None:
    events, expected = history(Random(seed), size)
    scattered = again([*events, *random.sample(events, size // 2)])
    random.shuffle(scattered)
    kept = _Kept()
    kept.apply(scattered, "source")
    assert kept.copies == expected


@pytest.mark.law("L5")
@pytest.mark.parametrize("cut", range(5))
def test_k_identical_inserts_and_one_delete_leave_one_copy_less(cut: int) -> None:
    row: Row = {"name": "a", "amount": 1}
    inserts = [change(RowKey(number, 104), None, row, at=number) for number in range(3)]
    events = [*inserts, change(RowKey(1, 104), row, None, at=3)]
    kept = _Kept()
    for part in (events[:cut], events[cut:], events):
        kept.apply(part)
    assert kept.copies == {("a", 1): 2}
