"""Reduces the rows of all ranges of a batch together, in this process, if a key is in several ranges.

``batch.source`` does the same with Spark, for rows that Spark stores.
"""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.sinks.batch.summaries import summary_of_rows
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.laws.counts import BatchSummary
from tidesink.sinks.laws.reduce import Longs, key_codes, last_by_source, last_versions
from tidesink.sinks.spark.payloads import UPSERT

# The maximum number of keys in the message about keys that occur in two partitions.
SHOWN_KEYS: Final = 3
_VERSION: Final = ("_commit_ts", "_partition", "_offset")


def last_rows(rows: pa.Table, task: RangeTask, summary: BatchSummary) -> tuple[pa.Table, BatchSummary]:
    """Returns the last row of each key, and the summary with the counts of these rows.

    Under ``mode: history`` these are the last rows of each key and commit_ts.

    ``rows``: the rows of all ranges, in the columns of ``tasks.reduced_schema``. Records that are not rows
    are returned too.
    """
    keyed = pc.is_valid(rows["key"])
    named = rows.filter(keyed).combine_chunks()
    kept = named.take(pa.array(_last(named, task)))
    others = rows.filter(pc.invert(keyed))
    return pa.concat_tables([kept, others]), summary_of_rows(summary, kept, task.plan.packed_shape)


def _last(rows: pa.Table, task: RangeTask) -> Longs:
    key = rows["key"].combine_chunks()
    if task.plan.rules.versions:
        writes = pc.equal(rows["_op"], UPSERT).to_numpy()
        moments, partitions, offsets = (_longs(rows[name]) for name in _VERSION)
        return last_versions(key, moments, writes, partitions, offsets)
    return last_by_source(key, rows["_seq"].combine_chunks())


def _longs(column: pa.ChunkedArray) -> Longs:
    values: Longs = column.to_numpy().astype(np.int64, copy=False)
    return values


def mixed_keys(rows: pa.Table) -> tuple[str, ...]:
    """Returns some keys that are in several topic-partitions, as JSON.

    The result is empty if no key is: two different keys may have the same hash.
    """
    named = rows.filter(pc.is_valid(rows["key"])).combine_chunks()
    key = named["key"].combine_chunks()
    places = pc.binary_join_element_wise(named["_topic"], named["_partition"].cast(pa.string()), " ")
    pairs = pa.table({"code": pa.array(key_codes(key)), "place": places})
    counts = pairs.group_by("code").aggregate([("place", "count_distinct")])
    codes = counts.filter(pc.greater(counts["place_count_distinct"], 1))["code"].combine_chunks()
    first = pc.index_in(codes.slice(0, SHOWN_KEYS), pairs["code"].combine_chunks())
    return tuple(json.dumps(one, separators=(",", ":"), default=_text) for one in key.take(first).to_pylist())


def _text(value: Any) -> str:
    return b64encode(value).decode() if isinstance(value, bytes) else str(value)
