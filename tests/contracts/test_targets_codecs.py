"""Every codec into every target: a changefeed's bytes through a worker's own task.

The other contracts hand batches of plain rows to a target. Here a task (``coded_table``) decodes, reduces,
evolves and commits as in a worker, from records that our encoders wrote; Kafka alone is not there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests import multisets
from tests.contracts.coded_changes import (
    CREATE,
    DEFAULTS,
    PROTOCOLS,
    TABLE,
    TOPIC,
    Changefeed,
    arriving,
    carries,
    first_changes,
    name_in,
    placed,
    sent_again,
    wider_changes,
)
from tests.contracts.coded_table import config_of, open_table
from tests.contracts.coded_types import TABLE as EVERY_TYPE
from tests.contracts.coded_types import EveryType
from tests.contracts.conftest import BED_NAMES, MARKS
from tests.contracts.targets_bed import Bed, progress
from tests.full import FULL, needs, quick_on
from tests.memory_target import MemoryTarget
from tests.reduction_law import reduce
from tidesink.codecs import open_codec
from tidesink.ddl.catalog import parse_create_table
from tidesink.events import ChangeEvent, Message, TableSchema
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN, ReducedBatch, ReducedRow
from tidesink.typemap.target_schema import TargetSchema, row_keyed, shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Rows = list[dict[str, Any]]
# Where the stream goes back to: behind a CREATE and the first rows, and between the last delete and insert of
# a key, so that the delete comes again after the row that followed it.
AGAIN: Final = (5, -2)


def marks_of(target: str, protocol: str) -> list[pytest.MarkDecorator]:
    """What a pair starts; and full, unless it is the target's one codec of ``make test``.

    Tests of the codecs show what each carries, and the other contracts what each target stores.
    """
    chosen = protocol == PROTOCOLS[BED_NAMES.index(target) % len(PROTOCOLS)]
    return [*MARKS.get(target, ()), *(() if chosen else (FULL,))]


PAIRS: Final = [
    pytest.param(target, protocol, marks=marks_of(target, protocol))
    for target in BED_NAMES
    for protocol in PROTOCOLS
]
CANAL_JSON_PAIRS: Final = [pytest.param(name, marks=marks_of(name, "canal-json")) for name in BED_NAMES]


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    """Every codec that workers read, in turn."""
    return str(request.param)


def orders(protocol: str) -> Changefeed:
    """All that happened to a table, columns that were added too."""
    feed = Changefeed(protocol, TableSchema(TABLE, ()), old_keys=carries(protocol).old_keys)
    feed.define(CREATE)
    first_changes(feed)
    wider_changes(feed)
    return feed


def at_source(feed: Changefeed, *, tells_defaults: bool = True) -> Rows:
    """The rows at the source, by key, under the names that arrive."""
    unknown = {} if tells_defaults else dict.fromkeys(DEFAULTS)
    rows = [{**row, **unknown} if key in feed.filled else row for key, row in sorted(feed.rows.items())]
    return [{name_in(feed.protocol, name): value for name, value in row.items()} for row in rows]


@pytest.mark.law("L2")
@pytest.mark.parametrize(("bed", "protocol"), PAIRS, indirect=["bed"])
def test_any_stream_ends_in_the_sources_rows_wherever_it_is_cut(
    bed: Bed, protocol: str, spark: SparkSession, tmp_path: Path
) -> None:
    feed = orders(protocol)
    messages = placed(sent_again(feed.records, *AGAIN))
    table = open_table(bed, spark, tmp_path, feed=feed, messages=messages, config=config_of(feed))
    # Each pair is cut elsewhere: once before the columns change, so that the target's change too, and once
    # behind it, from where another worker goes on.
    random = Random(f"{bed.name} {protocol}")
    cuts = [random.randrange(1, feed.unchanged), random.randrange(feed.unchanged, len(messages))]
    with table.table_task() as table_task:
        for cut in cuts:
            table.take(table_task, cut)
    with table.table_task() as table_task:
        table.take(table_task, len(messages))
    rows = table.rows(shape_of(arriving(feed.schema, protocol)))
    if not bed.keeps_rows:  # a message has what its row had: its reader knows the rest
        rows = [{**row, "order": row["order"] or DEFAULTS["order"]} for row in rows]
    reported = not bed.keeps_rows or carries(protocol).defaults
    assert rows == at_source(feed, tells_defaults=reported), cuts


def test_any_two_cuts_end_in_the_sources_rows_in_python_too(protocol: str) -> None:
    feed = orders(protocol)
    messages = placed(sent_again(feed.records, *AGAIN))
    shape = shape_of(arriving(feed.schema, protocol))
    expected = at_source(feed, tells_defaults=False)
    codec = open_codec(protocol, registry=feed.registry, table_of_topic=lambda _: TABLE)
    events = [_rows_alone(codec.decode(one)) for one in messages]
    assert sum(map(len, events)) > len(messages) - 5
    for first in range(1, len(messages)):
        for second in range(first, len(messages), 5):
            cuts = (0, first, second, len(messages))
            parts = [[e for some in events[a:b] for e in some] for a, b in pairwise(cuts)]
            assert _in_memory(parts, shape) == expected, cuts


def _rows_alone(events: Sequence[object]) -> list[ChangeEvent]:
    return [event for event in events if isinstance(event, ChangeEvent)]


def _in_memory(parts: Sequence[Sequence[ChangeEvent]], shape: TargetSchema) -> Rows:
    target = MemoryTarget()
    table = target.open_table(shape, pipeline="shop")
    epoch = table.claim().epoch
    for number, events in enumerate(parts, 1):
        reduced = reduce(events, shape.keys)
        rows = [
            ReducedRow("upsert" if one.row is not None else "delete", _key(shape, key), one.row)
            for key, one in reduced.rows.items()
        ]
        batch = ReducedBatch(shape, len(reduced.upserts), len(reduced.deletes), rows=rows)
        table.apply(batch, progress(epoch, number, table=shape.table))
    return sorted(target.rows(shape.table), key=lambda row: [row[name] for name in shape.keys])


def _key(shape: TargetSchema, values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(shape.keys, values, strict=True))


# On Delta: test_targets_sequence.py, by random streams.
@pytest.mark.law("L1")
@needs("source-order")
@quick_on("postgres")
@pytest.mark.parametrize(("bed", "protocol"), PAIRS, indirect=["bed"])
def test_in_the_sources_order_the_newest_change_stays_wherever_it_comes(
    bed: Bed, protocol: str, spark: SparkSession, tmp_path: Path
) -> None:
    options = carries(protocol).placed
    if options is None:
        pytest.skip(f"{protocol} has no positions")
    feed = Changefeed(protocol, parse_create_table(CREATE), options=options)
    first_changes(feed)
    random = Random(f"{bed.name} {protocol}")
    records = random.sample(feed.records, len(feed.records))
    # What was sent before comes again by itself, deletes without the rows that followed them.
    messages = placed([*records, *random.sample(feed.records, 5)], random)
    config = config_of(feed, sequence_by="source")
    table = open_table(bed, spark, tmp_path, feed=feed, messages=messages, config=config)
    with table.table_task() as table_task:
        table.take(table_task, random.randrange(1, len(records)))
        table.take(table_task, len(messages))
    living = [
        row
        for row in table.rows(shape_of(arriving(feed.schema, protocol)))
        if not row.pop(SOFT_DELETE_COLUMN)
    ]
    assert all(row.pop(SEQUENCE_COLUMN) for row in living)
    assert living == at_source(feed)


@pytest.mark.law("L6")
@quick_on("memory", "delta", "mysql", "kafka")
@pytest.mark.parametrize(("bed", "protocol"), PAIRS, indirect=["bed"])
def test_every_type_arrives_with_its_limits_and_null(
    bed: Bed, protocol: str, spark: SparkSession, tmp_path: Path
) -> None:
    every = EveryType(protocol, nul_in_text=bed.target.capabilities.nul_in_text)
    feed = Changefeed(protocol, TableSchema(EVERY_TYPE, ()), options=carries(protocol).every_type)
    feed.define(every.created)
    for number, values in enumerate(every.sent):
        feed.put(number, *values)
    inserted = len(feed.records)
    for number, values in enumerate(every.sent):  # each row gets the values of the one before it
        feed.put((number + 1) % 3, *values)
    messages, config = placed(feed.records), config_of(feed, definition=every.definition)
    table = open_table(bed, spark, tmp_path, feed=feed, messages=messages, config=config)
    with table.table_task() as table_task:
        table.take(table_task, inserted)  # appended to an empty table
        table.take(table_task, len(messages))  # merged
    rows = table.rows(shape_of(arriving(parse_create_table(every.known), protocol)))
    assert [row["id"] for row in rows] == [0, 1, 2]
    low, high, null = every.stored
    for found, expected in zip(rows, (null, low, high), strict=True):
        for name, value in expected.items():
            got = found[name_in(protocol, name)]
            assert (got, type(got)) == (value, type(value)), name


WIDE: Final = 1000


# What a target makes of such a table: tests/contracts/test_targets.py.
@FULL
@pytest.mark.parametrize(
    ("bed", "protocol"),
    [("memory", "flat-avro"), ("memory", "canal-json")],
    indirect=["bed"],
)
def test_a_thousand_columns_and_a_value_of_2_mib(
    bed: Bed, protocol: str, spark: SparkSession, tmp_path: Path
) -> None:
    columns = [f"c{at} {'INT' if at % 2 else 'VARCHAR(20)'}" for at in range(WIDE - 2)]
    feed = Changefeed(protocol, TableSchema(EVERY_TYPE, ()))
    feed.define(f"CREATE TABLE {EVERY_TYPE} (id BIGINT PRIMARY KEY, {', '.join(columns)}, big LONGTEXT)")
    values = [at if at % 2 else f"of {at}" for at in range(WIDE - 2)]
    big = "ä\n" + "x" * 2**21
    feed.put(1, *values, None)
    feed.put(2, *[None] * len(values), big)
    feed.put(1, *values[2:], *values[:2], None)  # every value stands elsewhere
    feed.put(3, *values, big[::-1])
    messages = placed(feed.records)
    table = open_table(bed, spark, tmp_path, feed=feed, messages=messages, config=config_of(feed))
    with table.table_task() as table_task:
        table.take(table_task, len(messages) - 2)
        table.take(table_task, len(messages))
    assert table.rows(shape_of(arriving(feed.schema, protocol))) == at_source(feed)


@pytest.mark.law("L5")
@quick_on("mysql")
@pytest.mark.parametrize("bed", CANAL_JSON_PAIRS, indirect=True)
def test_copies_of_rows_without_a_key_are_counted(bed: Bed, spark: SparkSession, tmp_path: Path) -> None:
    """canal-json alone can say which of equal rows an event is of."""
    random = Random(bed.name)
    events, copies = multisets.history(random, 40)
    sent: list[Message] = multisets.messages(multisets.again(events, 25, 10))
    feed = Changefeed("canal-json", multisets.SCHEMA, options=multisets.OPTIONS)
    config = config_of(feed, definition=multisets.CREATE)
    messages = [replace(one, topic=TOPIC) for one in sent]
    table = open_table(bed, spark, tmp_path, feed=feed, messages=messages, config=config)
    with table.table_task() as table_task:
        table.take(table_task, random.randrange(1, len(messages)))
        table.take(table_task, len(messages))
    assert multisets.copies(table.rows(row_keyed(shape_of(multisets.SCHEMA)))) == copies
    assert max(copies.values()) > 1
