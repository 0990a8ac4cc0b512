"""L5 on every target: rows without a key but TiDB's row keys are kept as a multiset."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from tests.contracts.targets_bed import Bed, progress
from tests.full import quick_on
from tests.multisets import SCHEMA, TABLE, again, copies, history
from tests.reduction_law import reduce
from tidesink.codecs.canal_json.codec import keyed_by_row
from tidesink.events import Row
from tidesink.typemap.target_schema import row_keyed, shape_of

pytestmark = quick_on("memory", "delta", "postgres")

SHAPE = row_keyed(shape_of(SCHEMA))


def _key(values: tuple[object, ...]) -> dict[str, object]:
    return dict(zip(SHAPE.keys, values, strict=True))


@pytest.mark.law("L5")
def test_copies_are_counted_however_the_stream_is_cut_and_sent_again(bed: Bed) -> None:
    random = Random(5)
    events, expected = history(random, 40)
    stream = again(events, 25, 10)
    cuts = sorted(random.sample(range(1, len(stream)), 2))
    table = bed.target.open_table(SHAPE, pipeline="shop")
    epoch = table.claim().epoch
    table.evolve(SHAPE)
    for number, (start, end) in enumerate(pairwise([0, *cuts, len(stream)]), 1):
        reduced = reduce(map(keyed_by_row, stream[start:end]), SHAPE.keys)
        upserts = [dict(row) for row in reduced.upserts.values()]
        batch = bed.batch(SHAPE, upserts, [_key(values) for values in reduced.deletes])
        result = table.apply(batch, progress(epoch, number, table=TABLE))
        assert result.applied == len(reduced.rows)
    kept: list[Row] = [*bed.read(TABLE)]
    assert copies(kept) == expected
    assert max(expected.values()) > 1
