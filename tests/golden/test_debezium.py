"""Debezium: captures of real connectors in every handling mode, decoded, and replayed to their last rows."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest

from tests.golden.debezium_captures import Capture, Replayed, find_captures, replay
from tests.golden.debezium_compare import row_of, same_cell
from tests.golden.debezium_exclusions import EXCLUSIONS, excluded_cell
from tests.golden.each_capture import each_capture
from tests.reduction_law import unsent_columns
from tests.vectors import WHOLE, vectors_dir
from tidesink.events import ChangeEvent, MessageEvent, Op

_OPS: Final = {"c": "insert", "r": "upsert", "u": "update", "d": "delete", "t": "truncate", "m": "message"}
_KEYS: Final = {"t_compk": 2, "t_nopk": 0, "p_nopk": 0}


_KINDS: Final[dict[str, Callable[[Capture], bool]]] = {
    "capture": lambda _: True,
    "enveloped": lambda one: not one.is_avro and not one.is_unwrapped,
    "postgres": lambda one: one.is_postgres and not one.is_unwrapped,
    "toasting": lambda one: one.is_postgres and one.modes.binary_handling_mode != "base64",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for name, kind in _KINDS.items():
        each_capture(metafunc, name=name, kind=kind)


def _cell(capture: Capture, table: str, row: dict[str, str | None], column: str) -> str:
    keys = [value or "" for value in list(row.values())[: _KEYS.get(table, 1)]]
    return f"{capture.name}/{table}/{'+'.join(keys)}/{column}"


def _differences(capture: Capture) -> Iterator[str]:
    """The cells of the database's final rows that the replay does not end in."""
    tables = replay(capture)
    for table, expected in capture.final_state().items():
        replayed = tables.get(table, Replayed())
        rows = [{capture.column_name(name): v for name, v in row.items()} for row in replayed.all_rows]
        missing = [row for row in expected if row_of(table, row, rows, keys=_KEYS.get(table, 1)) is None]
        yield from (_cell(capture, table, row, "-") for row in missing)
        if len(rows) != len(expected) - len(missing):
            yield f"{capture.name}/{table}: {len(rows)} rows, {len(expected)} expected"
        for row in expected:
            found = row_of(table, row, rows, keys=_KEYS.get(table, 1))
            if found is not None:
                wrong = [name for name, text in row.items() if not same_cell(table, name, text, found)]
                yield from (_cell(capture, table, row, name) for name in wrong)


def test_a_replay_ends_in_the_databases_rows(capture: Capture) -> None:
    differing = list(_differences(capture))
    assert [name for name in differing if excluded_cell(name) is None] == []


def test_no_exclusion_outlives_its_reason(pytestconfig: pytest.Config) -> None:
    root = vectors_dir(pytestconfig)
    if root != WHOLE:
        pytest.skip("the subset has not every capture")
    differing = {name for capture in find_captures(root) for name in _differences(capture)}
    unused = [one.pattern for one in EXCLUSIONS if not any(one.matches(name) for name in differing)]
    assert unused == []


def _payload(data: bytes | None) -> Any:
    found = None if data is None else json.loads(data)
    return found["payload"] if isinstance(found, dict) and "payload" in found else found


def test_each_record_is_the_event_its_envelope_says(enveloped: Capture) -> None:
    """Read from the JSON itself: no record is skipped, none is told twice."""
    codec = enveloped.codec()
    for message in enveloped.messages:
        payload = _payload(message.value)
        events = codec.decode(message)
        if payload is None:
            assert events == ()
            continue
        (event,) = events
        place = (message.topic, message.partition, message.offset)
        assert event.position[:3] == place
        if "op" in payload:
            found = event.op.value if isinstance(event, ChangeEvent) else "message"
            assert found == _OPS[payload["op"]], place


def test_keys_are_the_key_records(capture: Capture) -> None:
    for event in capture.events():
        if not isinstance(event, ChangeEvent):
            continue
        if event.op is Op.TRUNCATE or event.table.name in ("p_nopk", "t_nopk"):
            assert event.key is None
            continue
        assert event.key is not None
        assert event.schema is not None
        assert tuple(event.key) == tuple(column.name for column in event.schema.handle_columns)
        row = event.after or event.before or {}
        assert {name: row[name] for name in event.key} == event.key


def test_source_positions_of_a_key_never_go_back(capture: Capture) -> None:
    """Kafka keeps the changes of a key in order: numbers that compare must agree with it."""
    last: dict[Any, tuple[int, ...]] = {}
    compared: Counter[str] = Counter()
    for event in capture.events():
        if not isinstance(event, ChangeEvent) or event.key is None or event.position.source is None:
            continue
        # An incremental snapshot's row has the position at which its table was asked for: what came
        # since then is newer, and in the row as well.
        source = (event.extension or {}).get("source")
        if isinstance(source, Mapping) and source.get("snapshot") == "incremental":
            continue
        place = (event.table, tuple(event.key.items()))
        assert event.position.source >= last.get(place, ()), event
        last[place] = event.position.source
        compared[event.op.value] += 1
    assert capture.is_unwrapped or compared["update"] > 0


def test_postgres_snapshots_have_no_position(postgres: Capture) -> None:
    reported = defaultdict(set)
    for event in postgres.events():
        if isinstance(event, ChangeEvent):
            reported[(event.extension or {})["op"]].add(event.position.source is None)
    assert reported["r"] == {True}
    assert reported["u"] == {False}


def test_deletes_under_the_default_replica_identity_hold_the_key_alone(postgres: Capture) -> None:
    for event in postgres.events():
        if isinstance(event, ChangeEvent) and event.op is Op.DELETE:
            whole = event.table.name in ("p_full", "p_nopk", "p_toast_full")
            assert event.before is not None
            assert (set(event.before) == set(event.key or ())) is not whole, event


@pytest.mark.law("L6")
def test_unchanged_toast_values_are_absent_and_named(toasting: Capture) -> None:
    found = [
        set(unsent_columns(event))
        for event in toasting.events()
        if isinstance(event, ChangeEvent) and event.table.name == "p_toast" and event.op is Op.UPDATE
    ]
    toasted = {"big", "bigj", "bigb", "biga"}
    assert found[0] in (toasted, {"big", "bigb"})
    assert all(names <= toasted for names in found)


def test_logical_messages_and_transactions(capture: Capture) -> None:
    kinds = Counter(event.kind for event in capture.events() if isinstance(event, MessageEvent))
    assert kinds["transaction"] > 0
    logical = [e for e in capture.events() if isinstance(e, MessageEvent) and e.kind == "logical"]
    if kinds["logical"]:
        assert {event.prefix for event in logical} == {"lab"}
        assert [event.content for event in logical] == [b"hello transactional", b"hello non-tx"]


@pytest.mark.law("L4")
def test_a_changed_key_is_a_delete_and_an_insert(capture: Capture) -> None:
    """The two halves name each other in their headers."""
    halves = [
        event
        for event in capture.events()
        if isinstance(event, ChangeEvent) and {"newkey", "oldkey"} & set(event.extension or ())
    ]
    deleted = [one for one in halves if one.op is Op.DELETE]
    written = [one for one in halves if one.op is Op.INSERT]
    assert len(deleted) == len(written) > 0 or capture.is_unwrapped
    for old, new in zip(_by_key(deleted, "key"), _by_key(written, "oldkey"), strict=True):
        assert old == new


def _by_key(events: list[ChangeEvent], name: str) -> list[str]:
    """The keys of the old rows: of the deletes themselves, and as the other halves' headers have them."""
    if name == "key":
        return sorted(json.dumps(event.key, separators=(",", ":")) for event in events)
    return sorted(str((event.extension or {})[name]) for event in events)
