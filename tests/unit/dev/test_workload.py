"""The shop's changes: repeatable, of every type and kind, and both codecs bring the final state back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from tests.shop_records import RULE, Rows, ShopRecords, messages, open_decoder, replayed, shop_records
from tidesink.dev import shop
from tidesink.dev.shop import load_expected, save_expected, value_text
from tidesink.dev.workload import OutgoingRecord, resend_suffixes, shop_topics
from tidesink.events import ChangeEvent, DdlEvent, Op, TableId, Value
from tidesink.schema_registry.naming import TopicRule
from tidesink.typemap.table import TYPES, row_of

PROTOCOLS = ("flat-avro", "canal-json")
_SENT: dict[str, ShopRecords] = {}


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sent(protocol: str) -> ShopRecords:
    if protocol not in _SENT:
        _SENT[protocol] = shop_records(protocol)
    return _SENT[protocol]


def _filled(rows: Rows) -> Rows:
    """Rows from before a column was added get what the ALTER put into them."""
    for table, added in shop.ALTER.items():
        old = {added.name: added.in_old_rows}
        rows[table] = {key: {**old, **row} for key, row in rows[table].items()}
    return rows


def _expected(sent: ShopRecords) -> Rows:
    """The final state as the generator holds it, under keys in name order as ``replayed`` has them."""
    found: Rows = {}
    for table, rows in sent.changes.tables.rows.items():
        names = sorted(column.name for column in sent.changes.tables.schema(table).handle_columns)
        found[table] = {tuple(row[name] for name in names): row for row in rows.values()}
    return found


def _comparable(record: OutgoingRecord) -> tuple[object, ...]:
    """A record without canal-json's wall clock, which no seed can fix."""
    if not record.value or not record.value.startswith(b"{"):
        return tuple(record)
    message = json.loads(record.value)
    assert message.pop("ts") > 0
    return record.topic, record.partition, record.key, json.dumps(message)


def test_the_same_seed_gives_the_same_records(protocol: str, sent: ShopRecords) -> None:
    again = shop_records(protocol)
    assert [_comparable(r) for r in again.records] == [_comparable(r) for r in sent.records]
    assert again.again == sent.again


def test_flat_avro_is_the_same_to_the_byte() -> None:
    first, second = (shop_records("flat-avro", events=400) for _ in range(2))
    assert first.records == second.records


def test_another_seed_gives_other_records(protocol: str, sent: ShopRecords) -> None:
    other = shop_records(protocol, seed=2)
    assert not {r.value for r in other.records if r.value} & {r.value for r in sent.records}


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("extension", [True, False])
def test_records_with_resent_suffixes_end_in_the_expected_state(
    protocol: str, seed: int, extension: bool
) -> None:
    sent = shop_records(protocol, seed=seed, events=600, restart_every=40, extension=extension)
    assert sum(sent.again) > 50
    codec = open_decoder(protocol, sent.registry)
    assert _filled(replayed(codec, messages(sent.records))) == _expected(sent)


def test_a_suffix_brings_back_rows_until_it_is_complete(sent: ShopRecords, protocol: str) -> None:
    """The workload would prove nothing of re-sent suffixes if none ever changed a row."""
    records = messages(sent.records)
    cuts = [at for at, again in enumerate(sent.again) if again and not sent.again[at - 1]]
    states = []
    for cut in cuts:
        codec = open_decoder(protocol, sent.registry)
        before, within = replayed(codec, records[:cut]), replayed(codec, records[: cut + 1])
        states.append(before == within)
    assert cuts
    assert not all(states)


def test_keeps_a_key_in_one_partition(sent: ShopRecords) -> None:
    places: dict[tuple[str, bytes | None], set[int]] = {}
    for change, record in _rows_and_records(sent):
        key = repr(sorted((change.key or {}).items())).encode()
        places.setdefault((record.topic, key), set()).add(record.partition)
    assert {len(partitions) for partitions in places.values()} == {1}
    assert {record.partition for record in sent.records} == {0, 1, 2}


def _rows_and_records(sent: ShopRecords) -> Iterator[tuple[ChangeEvent, OutgoingRecord]]:
    first = [record for record, again in zip(sent.records, sent.again, strict=True) if not again]
    changes = [change for change in sent.made if isinstance(change, ChangeEvent)]
    if len(first) > len(changes):  # canal-json sends DDL too
        first = [
            record for change, record in zip(sent.made, first, strict=True) if isinstance(change, ChangeEvent)
        ]
    yield from zip(changes, first, strict=True)


def test_has_every_kind_of_change(sent: ShopRecords) -> None:
    rows = [change for change in sent.made if isinstance(change, ChangeEvent)]
    assert {change.op for change in rows} == {Op.INSERT, Op.UPDATE, Op.DELETE}
    assert {change.table for change in rows} == set(shop.CREATE)
    statements = [change for change in sent.made if isinstance(change, DdlEvent)]
    assert [change.kind for change in statements] == ["CREATE"] * 5 + ["ALTER"] * 3
    assert 0 < sent.made.index(statements[-1]) < len(sent.made) - len(rows) // 4


def test_has_key_changes_as_delete_and_insert_of_one_commit(sent: ShopRecords) -> None:
    products = [c for c in sent.made if isinstance(c, ChangeEvent) and c.table.name == "products"]
    pairs = [
        (old, new)
        for old, new in pairwise(products)
        if (old.op, new.op) == (Op.DELETE, Op.INSERT) and old.commit_ts == new.commit_ts
    ]
    assert pairs
    for old, new in pairs:
        assert old.key != new.key
        assert old.before is not None
        assert {**old.before, "sku": None} == {**(new.after or {}), "sku": None}


def test_commit_ts_grows(sent: ShopRecords) -> None:
    stamps = [change.commit_ts or 0 for change in sent.made]
    assert stamps == sorted(stamps)
    assert stamps[0] > 1 << 58


def test_has_every_type_with_its_extremes_and_null() -> None:
    found = _values_by_type()
    assert {name for name, _ in found} == {row.name for row in TYPES}
    for row in TYPES:
        values = {value for name, value in found if name == row.name}
        assert None in values, row.name
        if row.bounds is not None and row.name != "year":
            assert {*row.bounds} <= values, row.name
    text = {value for name, value in found if name == "time"}
    assert {"-838:59:59.0000", "838:59:59.0000"} <= text
    assert {"0000-00-00", "1000-01-01", "9999-12-31"} <= {value for name, value in found if name == "date"}
    assert 2**64 - 1 in {value for name, value in found if name == "bit"}
    assert any(len(str(value)) == 65 + 1 for name, value in found if name == "decimal")


def _values_by_type() -> set[tuple[str, object]]:
    """The values of all tables of a longer run, each with its type's name."""
    return {
        (row_of(column.type).name, change.after[column.name])
        for change in shop_records("flat-avro", events=6_000).made
        if isinstance(change, ChangeEvent) and change.after and change.schema
        for column in change.schema.columns
    }


def test_topics_are_those_of_the_rule() -> None:
    assert sorted(shop_topics(RULE)) == sorted(f"shop_{table.name}" for table in shop.CREATE)
    assert shop_topics(TopicRule.parse("all_{schema}")) == ["all_shop"]


def test_a_suffix_is_sent_again_in_order_and_up_to_the_present() -> None:
    records = [OutgoingRecord("t", 0, str(number).encode(), None) for number in range(500)]
    sent = list(resend_suffixes(records, Random(1), 20))
    assert [record for record, again in sent if not again] == records
    assert any(again for _, again in sent)
    present = -1
    for (record, again), (after, after_again) in pairwise(sent):
        present = present if again else int(record.key or b"")
        if again and not after_again:
            assert int(record.key or b"") == present
        elif again:
            assert int(after.key or b"") == int(record.key or b"") + 1


def test_the_expected_state_is_saved_and_read_back(tmp_path: Path, sent: ShopRecords) -> None:
    path = tmp_path / "deep" / "expected.json"
    save_expected(path, sent.changes.tables)
    loaded = {table.table: table for table in load_expected(path)}
    assert loaded.keys() == set(shop.CREATE)
    items = loaded[TableId("shop", "order_items")]
    assert items.key == ("order_id", "line")
    assert items.columns["price"] == "decimal(12,2)"
    rows = sent.changes.tables.rows[TableId("shop", "order_items")]
    assert items.rows == [[value_text(value) for value in row.values()] for row in rows.values()]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, None), (b"\x00\xff", "00ff"), (2**64 - 1, "18446744073709551615"), (1.5, "1.5"), ("", "")],
)
def test_value_text(value: Value, text: str | None) -> None:
    assert value_text(value) == text
