"""What the rows of a batch become in files, by the rows stored: against the law in plain Python."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.columns import ID
from tidesink.errors import ValueNotStoredError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.target_rows import key_type, row_type
from tidesink.sinks.targets.base import SEQUENCE_COLUMN, SOFT_DELETE_COLUMN, RowSequence
from tidesink.sinks.targets.lake.rows import (
    NEEDS_STORED,
    FileColumn,
    RowRules,
    StoredRows,
    newer,
    sequence_type,
)
from tidesink.typemap.target_schema import shape_of

NAMES = ("name", "amount")
SHAPE = shape_of(TableSchema(TableId("shop", "orders"), (ID, *(Column(n, ColumnType("int")) for n in NAMES))))
POSITIONS = sequence_type([(name, None) for name in RowSequence._fields])
COLUMNS = (
    FileColumn("id", "id", pa.int64(), 1, True, True),
    FileColumn("f2", "name", pa.int32(), 2, False, False),
    FileColumn("f3", "amount", pa.int64(), 3, False, False),
    FileColumn("f4", SOFT_DELETE_COLUMN, pa.bool_(), 4, False, False),
)
ORDERED = (*COLUMNS, FileColumn("f5", SEQUENCE_COLUMN, POSITIONS, 5, False, False))
BATCH = pa.schema(
    [
        ("_op", pa.string()),
        ("key", key_type(SHAPE)),
        ("after", row_type(SHAPE)),
        ("_kept", pa.list_(pa.string())),
        ("_after_delete", pa.bool_()),
        ("_topic", pa.string()),
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_seq", POSITIONS),
    ]
)


class Change(NamedTuple):
    number: int
    delete: bool
    values: tuple[int | None, int | None]
    kept: tuple[str, ...]
    after_delete: bool | None
    stale: bool


class Stored(NamedTuple):
    values: tuple[int | None, int | None]
    deleted: bool | None


def batch_of(changes: list[Change], rules: RowRules) -> pa.Table:
    rows = []
    for at, change in enumerate(changes):
        sent = {name: None if name in change.kept else value for name, value in pairs(change.values)}
        if change.delete:
            sent = {name: value if name in rules.on_delete else None for name, value in sent.items()}
        bare = change.delete and not rules.on_delete
        rows.append(
            {
                "_op": "delete" if change.delete else "upsert",
                "key": {"id": change.number},
                "after": None if bare else {"id": None if change.delete else change.number, **sent},
                "_kept": list(change.kept) if change.kept and not change.delete else None,
                "_after_delete": change.after_delete,
                "_topic": "t",
                "_partition": 0,
                "_offset": at,
                "_seq": position(at),
            }
        )
    return pa.Table.from_pylist(rows, BATCH).select(rules.fields)


def pairs(values: tuple[int | None, int | None]) -> list[tuple[str, int | None]]:
    return list(zip(NAMES, values, strict=True))


def position(at: int) -> dict[str, Any]:
    return RowSequence((at,), True, 0, at, 0)._asdict() | {"source": [at]}


def expected(changes: list[Change], stored: dict[int, Stored], rules: RowRules) -> list[dict[str, Any]]:
    """The rows to write; raises ValueError where a value is nowhere."""
    found = []
    for at, change in enumerate(changes):
        old = stored.get(change.number)
        if (rules.sequenced and change.stale and old) or (
            change.delete and not rules.sequenced and not (rules.soft and old)
        ):
            continue
        row: dict[str, Any] = {"id": change.number}
        for place, (name, value) in enumerate(pairs(change.values)):
            if change.delete:
                stays = rules.soft and old is not None and name not in rules.on_delete
                sent = value if name in rules.on_delete and name not in change.kept else None
                row[f"f{place + 2}"] = old.values[place] if stays and old else sent
            elif rules.keeps and name in change.kept:
                gone = old is None or bool(change.after_delete) or bool(old.deleted)
                if gone and not rules.lenient:
                    raise ValueError(name)
                row[f"f{place + 2}"] = None if gone or old is None else old.values[place]
            else:
                row[f"f{place + 2}"] = None if name in change.kept else value
        row["f4"] = change.delete
        found.append(row | ({"f5": position(at)} if rules.sequenced else {}))
    return found


numbers = st.one_of(st.none(), st.integers(0, 9))
values = st.tuples(numbers, numbers)


@st.composite
def change(draw: st.DrawFn, number: int) -> Change:
    kept = draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
    flags = st.sampled_from([True, False, None])
    return Change(number, draw(st.booleans()), draw(values), tuple(kept), draw(flags), draw(st.booleans()))


RULES = [
    RowRules(),
    RowRules(soft=True),
    RowRules(soft=True, on_delete=frozenset({"amount"})),
    RowRules(keeps=True),
    RowRules(keeps=True, lenient=True),
    RowRules(keeps=True, lenient=True, soft=True, on_delete=frozenset({"amount"})),
    RowRules(sequenced=True),
    RowRules(sequenced=True, soft=True, on_delete=frozenset({"name"})),
]


@pytest.mark.parametrize("rules", RULES, ids=str)
@given(st.data())
def test_rows_become_what_the_law_says(rules: RowRules, data: st.DataObject) -> None:
    numbers = st.lists(st.integers(0, 5), max_size=5, unique=True)
    changes = [data.draw(change(number)) for number in data.draw(numbers)]
    if not rules.keeps:  # the plan has no values that are left out
        changes = [one._replace(kept=()) for one in changes]
    row = st.builds(Stored, values, st.sampled_from([True, False, None]))
    stored = data.draw(st.dictionaries(st.integers(0, 5), row))
    columns = ORDERED if rules.sequenced else COLUMNS
    batch = batch_of(changes, rules)
    needed = needing(batch, rules)
    rows = [
        {"id": number, "f2": one.values[0], "f3": one.values[1], "f4": one.deleted}
        for number, one in stored.items()
        if number in needed
    ]
    wanted = rules.stored_columns(columns, set(rules.omitted(batch)))
    whole = pa.Table.from_pylist(rows, pa.schema([one.field for one in COLUMNS]))
    stale = [one.number for one in changes if rules.sequenced and one.stale and one.number in stored]
    names = ["id", *(one.name for one in wanted)]
    known = StoredRows(pa.table({"id": pa.array(stale, pa.int64())}), whole.select(names))
    try:
        outcome = expected(changes, stored, rules)
    except ValueError:
        with pytest.raises(ValueNotStoredError, match="The source database did not send the value"):
            rules.written(batch, columns, known)
        return
    assert rules.written(batch, columns, known).to_pylist() == outcome
    if not stored:
        assert rules.written(batch, columns).to_pylist() == outcome


def needing(batch: pa.Table, rules: RowRules) -> set[int]:
    """The keys whose stored values the batch asks for."""
    upserts, deletes = rules.keys(batch, COLUMNS)
    assert upserts.num_rows + deletes.num_rows == batch.num_rows
    if NEEDS_STORED not in upserts.column_names:
        return set()
    return {one["id"] for table in (upserts, deletes) for one in table.to_pylist() if one[NEEDS_STORED]}


def test_a_value_that_nobody_has_is_named_with_its_place() -> None:
    rules = RowRules(keeps=True)
    changes = [Change(n, False, (1, 2), kept, False, False) for n, kept in ((1, ()), (2, NAMES))]
    with pytest.raises(ValueNotStoredError, match="value of name, amount") as caught:
        rules.written(batch_of(changes, rules), COLUMNS)
    assert caught.value.context == {"topic": "t", "partition": 0, "offset": 1}


small = st.integers(0, 2)
places = st.builds(RowSequence, st.lists(small, max_size=3).map(tuple), st.booleans(), small, small, small)


@given(st.lists(st.tuples(places, st.one_of(st.none(), places)), max_size=8))
def test_positions_compare_as_tuples_do(pairs: list[tuple[RowSequence, RowSequence | None]]) -> None:
    """Those of files may be of a part of an array, and with other names."""
    ours, stored = (
        [one and one._asdict() for one in some] for some in ([a for a, _ in pairs], [b for _, b in pairs])
    )
    named = sequence_type([(f"x{at}", at) for at in range(5)], 9)
    kind = FileColumn("f", SEQUENCE_COLUMN, named, 1, False, False)
    before = pa.array([position(7), *stored], POSITIONS)[1:]
    found = newer(pa.array(ours, POSITIONS), kind.cast(before))
    assert found.tolist() == [b is None or a > b for a, b in pairs]
