"""Progress goes through JSON unchanged, and what is not progress is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidesink.errors import ProgressError
from tidesink.events import TableId
from tidesink.sinks.state.progress import (
    DdlProgress,
    PartitionProgress,
    Progress,
    SnapshotProgress,
    Sweep,
    TopicProgress,
    from_json,
    split_txn_version,
    to_json,
    txn_version,
)
from tidesink.sinks.state.source_reads import SourceRead, Span

offsets = st.integers(0, 2**63 - 1)
times = st.none() | st.integers(0, 2**63 - 1)
partitions = st.dictionaries(
    st.integers(0, 2**31 - 1), st.builds(PartitionProgress, offsets, offsets, times, times, times), max_size=4
)
snapshots = st.builds(
    SnapshotProgress,
    st.lists(st.text(), max_size=3).map(tuple),
    st.none() | st.lists(st.text(), max_size=3).map(tuple),
    st.integers(0, 2**63 - 1),
    st.booleans(),
    st.integers(0, 2**63 - 1),
    st.none() | st.builds(Sweep, *[st.integers(0, 2**63 - 1)] * 3),
    st.none() | st.text(),
    st.lists(st.tuples(st.text(), st.sampled_from([">=", "<"]), st.text()), max_size=2).map(tuple),
    st.none() | st.integers(0, 2**63 - 1),
    st.none() | st.text(),
)
spans = st.dictionaries(st.integers(0, 99), st.tuples(offsets, offsets).map(lambda one: Span(*sorted(one))))
reads = st.builds(
    SourceRead,
    offsets,
    st.dictionaries(st.text(), spans, max_size=2),
    st.booleans(),
    st.none() | st.text(),
    st.lists(st.tuples(st.text(), st.sampled_from([">=", "<"]), st.text()), max_size=2).map(tuple),
)
topics = st.lists(st.builds(TopicProgress, st.text(), st.text(), partitions), max_size=3)


@st.composite
def progresses(draw: st.DrawFn) -> Progress:
    return Progress(
        TableId(draw(st.text()), draw(st.text())),
        draw(st.text()),
        draw(st.integers(0, 2**23 - 1)),
        draw(st.integers(0, 2**40 - 1)),
        {topic.topic: topic for topic in draw(topics)},
        draw(times),
        draw(st.sampled_from(["kafka", "source"])),
        draw(st.none() | snapshots),
        rewound=draw(offsets),
        ddl=draw(st.none() | st.builds(DdlProgress, st.text(), offsets, offsets)),
        source_reads=draw(st.lists(reads, max_size=2).map(tuple)),
    )


@given(progresses())
def test_json_round_trip(progress: Progress) -> None:
    text = to_json(progress)
    assert from_json(text) == progress
    assert to_json(from_json(text)) == text


@given(st.integers(0, 2**23 - 1), st.integers(0, 2**40 - 1))
def test_transaction_versions_order_epochs_then_batches(epoch: int, batch: int) -> None:
    version = txn_version(epoch, batch)
    assert split_txn_version(version) == (epoch, batch)
    assert version < 2**63
    if epoch < 2**23 - 1:
        assert txn_version(epoch + 1, 0) > version


@pytest.mark.parametrize(("epoch", "batch"), [(-1, 0), (0, -1), (0, 2**40), (2**23, 0)])
def test_what_does_not_fit_is_refused(epoch: int, batch: int) -> None:
    with pytest.raises(ValueError, match="no transaction version"):
        txn_version(epoch, batch)


def test_offsets_of_a_partition() -> None:
    at = {3: PartitionProgress(10, 8)}
    progress = Progress(TableId("s", "t"), "p", 1, 1, {"a": TopicProgress("a", "id", at)})
    # What waits from offset 8 on is not applied, though it was read.
    assert progress.next_offset("a", 3) == 8
    assert progress.next_offset("a", 4) is None
    assert progress.next_offset("b", 3) is None


GOOD = json.loads(to_json(Progress(TableId("s", "t"), "p", 1, 1)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "not valid JSON"),
        ("[]", "format version None"),
        (json.dumps({**GOOD, "version": 2}), "format version 2"),
        (json.dumps({**GOOD, "table": ["one"]}), "damaged"),
        (json.dumps({**GOOD, "sequence_by": "moon"}), "damaged"),
        (json.dumps({k: v for k, v in GOOD.items() if k != "epoch"}), "damaged"),
        (json.dumps({**GOOD, "topics": {"a": {"topic_id": "x", "partitions": {"0": [1]}}}}), "damaged"),
        (json.dumps({**GOOD, "topics": []}), "damaged"),
    ],
)
def test_what_is_not_progress_is_refused(text: str, words: str) -> None:
    with pytest.raises(ProgressError, match=words):
        from_json(text)
