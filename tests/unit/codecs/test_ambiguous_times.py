"""TIMESTAMP in the hour that clocks show twice: by the row's checksum, else by the policy; counted."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.decoded_batches import as_records, assert_same
from tests.unit.codecs.canal_json.messages import row_bytes
from tests.unit.codecs.flat_avro.cases import TOPIC, change, codec_with, message_of, only_change, table
from tests.unit.config.samples import FLAT_AVRO, changed, right
from tests.unit.sinks.batch.test_range_tasks import WANTED, run, summary
from tidesink.cli import table_plans
from tidesink.cli.status import count_remarks
from tidesink.codecs import open_codec
from tidesink.codecs.base import Codec, CodecOptions
from tidesink.codecs.batch import DecodedBatch, ValueOptions, rows_from_events
from tidesink.codecs.row_checksum import CHECKSUM, RowSums
from tidesink.errors import ValueOutOfRangeError
from tidesink.events import ChangeEvent, ColumnType, Message, Op, TableId, TableSchema
from tidesink.schema_registry.client import MemorySchemaRegistry
from tidesink.sinks.batch.tasks import RangeTask
from tidesink.sinks.decode.canal_json import canal_json_plan
from tidesink.sinks.decode.flat_avro import flat_avro_plan
from tidesink.sinks.decode.plans import PlanSettings, SubjectSchemas
from tidesink.sinks.state.progress import TableStatus
from tidesink.typemap.arrow_text import sets_clocks_back
from tidesink.typemap.table import AmbiguousTime, ZeroDate
from tidesink.typemap.values import FoldedTime, target_reader

BERLIN: Final = ZoneInfo("Europe/Berlin")
TWICE: Final = "2024-10-27 02:30:00"
FIRST: Final = datetime(2024, 10, 27, 0, 30, tzinfo=timezone.utc)
SECOND: Final = FIRST + timedelta(hours=1)
CHOICES: Final[tuple[tuple[AmbiguousTime, datetime], ...]] = (("first", FIRST), ("second", SECOND))
POLICIES: Final[tuple[AmbiguousTime, ...]] = ("first", "second", "error")
STAMP: Final = ColumnType("timestamp")
SUMMED: Final[dict[str, Any]] = {
    "enable_tidb_extension": True,
    "row_checksum": True,
    "avro_decimal_handling_mode": "string",
    "avro_bigint_unsigned_handling_mode": "string",
    "time_zone": "Europe/Berlin",
}
SCHEMA: Final = table("create table shop.orders (id int primary key, made timestamp, paid timestamp)")
KEYED: Final = table("create table shop.orders (made timestamp primary key, v int)")


@pytest.mark.parametrize(("policy", "moment"), CHOICES)
def test_the_policy_chooses(policy: AmbiguousTime, moment: datetime) -> None:
    read = target_reader(STAMP, time_zone=BERLIN, zero_date="null", ambiguous_time=policy)
    assert read(TWICE) == moment
    # What is known is no matter of policy.
    assert [read(FoldedTime(TWICE, fold)) for fold in (0, 1)] == [FIRST, SECOND]
    # A time that the clocks skip is one.
    assert read("2024-03-31 02:30:00") == datetime(2024, 3, 31, 1, 30, tzinfo=timezone.utc)


def test_the_policy_may_be_to_refuse() -> None:
    read = target_reader(STAMP, time_zone=BERLIN, zero_date="null", ambiguous_time="error")
    with pytest.raises(ValueOutOfRangeError, match=r"occurs twice in Europe/Berlin.*Set ambiguous-time"):
        read(TWICE)
    assert read(FoldedTime(TWICE, 1)) == SECOND
    assert read("2024-10-27 03:00:00") == datetime(2024, 10, 27, 2, tzinfo=timezone.utc)


def test_a_known_time_is_a_text_and_can_be_copied() -> None:
    time = FoldedTime(TWICE, 1)
    assert time == TWICE
    for other in (copy.copy(time), copy.deepcopy(time), pickle.loads(pickle.dumps(time))):  # noqa: S301
        assert (other, other.fold, type(other)) == (TWICE, 1, FoldedTime)


def _rows(found: DecodedBatch) -> list[tuple[Any, ...]]:
    """Key or id, both times, and the columns where a policy chose."""
    rows = [row for one in found.tables for row in one.rows.to_pylist()]
    return [(row["after"] or row["before"], row["ambiguous_times"]) for row in rows]


def _checked(
    codec: Codec, messages: Sequence[Message], policy: AmbiguousTime, zero_date: ZeroDate = "null"
) -> DecodedBatch:
    """The batch, which is what the row path gives."""
    batch = as_records(replace(one, offset=at) for at, one in enumerate(messages))
    found = codec.decode_batch(batch, zero_date=zero_date, ambiguous_time=policy)
    options = ValueOptions(zero_date, "Europe/Berlin", ambiguous_time=policy)
    assert_same(found, rows_from_events(batch, codec.decode, options))
    return found


def _summed(row: Mapping[str, Any], schema: TableSchema, op: Op = Op.INSERT) -> ChangeEvent:
    """A change whose checksum is that of the row, whose times may say which are meant."""
    said = str(RowSums(schema.columns, "Europe/Berlin").sum(row))
    images = {"after": None, "before": row} if op is Op.DELETE else {"after": row}
    return change(op, schema=schema, extension={CHECKSUM: said}, **images)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("checksum", ["off", "reject"])
@pytest.mark.parametrize("folds", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_the_checksum_says_which_times_are_meant(
    policy: AmbiguousTime, checksum: str, folds: tuple[int, int]
) -> None:
    registry = MemorySchemaRegistry()
    times = {name: FoldedTime(TWICE, fold) for name, fold in zip(("made", "paid"), folds, strict=True)}
    writer = codec_with(registry, **SUMMED)
    message = message_of(writer, _summed({"id": 1, **times}, SCHEMA))
    reader = codec_with(registry, **SUMMED, checksum=checksum)
    ((row, chosen),) = _rows(_checked(reader, [message], policy))
    assert (row["made"], row["paid"]) == tuple((FIRST, SECOND)[fold] for fold in folds)
    assert chosen is None
    # The encoder sums what is meant.
    event = only_change(reader, message)
    again = only_change(reader, message_of(writer, event._replace(extension=None)))
    assert (again.extension or {})[CHECKSUM] == (event.extension or {})[CHECKSUM]


@pytest.mark.parametrize("said", ["", "0", "77"])
def test_without_a_checksum_that_fits_the_policy_holds_and_is_counted(said: str) -> None:
    registry = MemorySchemaRegistry()
    codec = codec_with(registry, **SUMMED)
    row = {"id": 1, "made": TWICE, "paid": None}
    messages = [message_of(codec, change(after=row, schema=SCHEMA, extension={CHECKSUM: said}))]
    for policy, moment in CHOICES:
        ((found, chosen),) = _rows(_checked(codec, messages, policy))
        assert (found["made"], chosen) == (moment, ["made"])
    refused = _checked(codec, messages, "error")
    assert not refused.tables
    (fault,) = refused.faults
    assert fault.error.context["column"] == "made"


def test_without_checksums_rows_stay_in_columns() -> None:
    codec = codec_with(time_zone="Europe/Berlin")
    rows = [{"id": at, "made": f"2024-10-27 0{at}:30:00", "paid": None} for at in range(5)]
    messages = [message_of(codec, change(after=row, schema=SCHEMA)) for row in rows]
    for policy, moment in CHOICES:
        found = _checked(codec, messages, policy)
        assert found.row_by_row_records == 0
        assert _rows(found)[2] == ({"id": 2, "made": moment, "paid": None}, ["made"])
        assert [chosen for _, chosen in _rows(found)] == [None, None, ["made"], None, None]
    assert [one.record for one in _checked(codec, messages, "error").faults] == [2]


def test_in_a_key_it_is_an_error_but_where_the_checksum_says_it() -> None:
    registry = MemorySchemaRegistry()
    plain = codec_with(time_zone="Europe/Berlin")
    bare = message_of(plain, change(after={"made": TWICE, "v": 1}, schema=KEYED))
    for policy in POLICIES:
        assert [one.record for one in _checked(plain, [bare], policy).faults] == [0]
    codec = codec_with(registry, **SUMMED)
    summed = message_of(codec, _summed({"made": FoldedTime(TWICE, 1), "v": 1}, KEYED))
    (found,) = _checked(codec, [summed], "error").tables
    assert found.rows["key"].to_pylist() == [{"made": SECOND}]
    assert found.rows["after"].to_pylist() == [{"made": SECOND, "v": 1}]


def test_a_deletes_row_is_what_its_checksum_says() -> None:
    codec = codec_with(MemorySchemaRegistry(), **SUMMED, producer="new", avro_include_before_value=True)
    row = {"id": 1, "made": FoldedTime(TWICE, 1), "paid": None}
    message = message_of(codec, _summed(row, SCHEMA, Op.DELETE))
    (found,) = _checked(codec, [message], "error").tables
    assert found.rows["before"].to_pylist() == [{"id": 1, "made": SECOND, "paid": None}]


def test_what_zero_date_keeps_as_text_has_no_reading() -> None:
    codec = codec_with(time_zone="Europe/Berlin")
    row = {"id": 1, "made": TWICE, "paid": None}
    batch = as_records([message_of(codec, change(after=row, schema=SCHEMA))])
    (found,) = codec.decode_batch(batch, zero_date="text", ambiguous_time="error").tables
    assert found.rows["after"].to_pylist() == [row]


@pytest.mark.parametrize("policy", POLICIES)
def test_canal_json_follows_the_policy(policy: AmbiguousTime) -> None:
    types = {"id": "int", "made": "timestamp"}
    values = [
        row_bytes({"id": "1", "made": text}, mysqlType=types, old=old, type="UPDATE" if old else "INSERT")
        for text, old in ((TWICE, None), ("2024-10-27 03:30:00", [{"made": TWICE}]), (None, None))
    ]
    codec = open_codec("canal-json", options=CodecOptions(time_zone="Europe/Berlin"))
    found = _checked(codec, [Message("t", 0, at, None, value) for at, value in enumerate(values)], policy)
    if policy == "error":
        assert [one.record for one in found.faults] == [0, 1]
        return
    rows = [row for one in found.tables for row in one.rows.to_pylist()]
    moment = FIRST if policy == "first" else SECOND
    assert (rows[0]["after"]["made"], rows[1]["before"]["made"]) == (moment, moment)
    # Of an update it is the row after it that counts.
    assert [row["ambiguous_times"] for row in rows] == [["made"], None, None]


@pytest.mark.parametrize("logs", [False, True])
def test_tasks_count_what_the_policy_chose(logs: bool) -> None:
    types = {"id": "int", "made": "timestamp", "paid": "timestamp"}
    texts = [(TWICE, None), (TWICE, TWICE), ("2024-10-27 03:30:00", None)]
    values = [
        row_bytes(
            {"id": str(at), "made": made, "paid": paid}, mysqlType=types, database="shop", table="orders"
        )
        for at, (made, paid) in enumerate(texts)
    ]
    plan = canal_json_plan(
        SCHEMA, PlanSettings(time_zone="Europe/Berlin", ambiguous_time="second", logs=logs)
    )
    messages = [Message("t", 0, at, None, value) for at, value in enumerate(values)]
    rows, payloads = run(RangeTask((WANTED,), plan), [as_records(messages)])
    assert summary(payloads).findings.ambiguous_times == {"made": 2, "paid": 1}
    made = [row["after"]["made"] for row in sorted(rows, key=lambda row: row["_offset"])]
    assert made == [SECOND, SECOND, SECOND + timedelta(hours=1)]


@pytest.mark.parametrize(("summed", "chosen"), [(True, {}), (False, {"made": 1})])
def test_tasks_take_what_the_checksum_says(summed: bool, chosen: dict[str, int]) -> None:
    registry = MemorySchemaRegistry()
    codec = codec_with(registry, **SUMMED | {"row_checksum": summed})
    row = {"id": 1, "made": FoldedTime(TWICE, 1), "paid": None}
    message = replace(message_of(codec, change(after=row, schema=SCHEMA)), partition=0, offset=0)
    texts = {
        part: {found.id: found.schema_text}
        for part in ("key", "value")
        for found in [registry.schema_by_version(f"{TOPIC}-{part}", 1)]
    }
    plan = flat_avro_plan(
        SCHEMA.table, SubjectSchemas(texts["key"], texts["value"]), PlanSettings(time_zone="Europe/Berlin")
    )
    (written,), payloads = run(RangeTask((WANTED,), plan), [as_records([message])])
    assert written["after"]["made"] == (SECOND if summed else FIRST)
    assert summary(payloads).findings.ambiguous_times == chosen


def test_a_config_says_the_policy_for_all_tables_or_one() -> None:
    config = right(
        changed(
            FLAT_AVRO,
            defaults__ambiguous_time="error",
            tables=[{"name": "shop.orders", "ambiguous-time": "second"}],
        )
    )
    found = [config.table_config(TableId("shop", name)).ambiguous_time for name in ("orders", "others")]
    assert found == ["second", "error"]
    assert right(FLAT_AVRO).table_config(TableId("shop", "orders")).ambiguous_time == "first"


@pytest.mark.parametrize(
    ("zone", "summed", "warned"),
    [("Europe/Berlin", False, True), ("Europe/Berlin", True, False), ("UTC", False, False)],
)
def test_plan_warns_where_nothing_says_which_time_is_meant(zone: str, summed: bool, warned: bool) -> None:
    registry = MemorySchemaRegistry()
    codec = codec_with(registry, **SUMMED | {"row_checksum": summed})
    message_of(codec, change(after={"id": 1, "made": None, "paid": None}, schema=SCHEMA))
    config = right(changed(FLAT_AVRO, source__time_zone=zone))
    plan = table_plans._flat_avro(config, registry, TOPIC, SCHEMA.table)
    assert plan.policies["ambiguous-time"] == "first"
    told = [line for line in plan.warnings if "ambiguous-time: first says which" in line]
    assert len(told) == warned
    assert all("tidesink takes for made, paid" in line for line in told)
    notes = {column.name: column.note for column in plan.columns}
    assert ("times that occur twice: first" in notes["made"]) == (zone != "UTC")


@pytest.mark.parametrize(
    ("zone", "found"), [("America/New_York", True), ("UTC", False), ("Asia/Shanghai", False)]
)
def test_which_zones_set_their_clocks_back(zone: str, found: bool) -> None:
    assert sets_clocks_back(ZoneInfo(zone), 2024) == found


def test_status_says_how_often_the_policy_chose() -> None:
    status = TableStatus("shop", TableId("shop", "orders"), "RUNNING", ambiguous_times={"made": 2, "paid": 0})
    assert list(count_remarks(status, right(FLAT_AVRO).source)) == [
        "2 times of column made occur twice when clocks go back, so the other occurrence may be meant "
        "(ambiguous-time)"
    ]


_TIMES: Final = st.sampled_from(
    [None, TWICE, "2024-10-27 02:59:59", "2024-10-27 03:00:00", "2024-03-31 02:30:00", "0000-00-00 00:00:00"]
)
_FOLDS: Final = st.sampled_from([(0, 0), (0, 1), (1, 0), (1, 1), None])


@given(
    rows=st.lists(st.tuples(_TIMES, _TIMES, _FOLDS), min_size=1, max_size=8),
    policy=st.sampled_from(POLICIES),
    zero_date=st.sampled_from(["null", "error", "text"]),
    before=st.booleans(),
)
@settings(max_examples=100)
def test_columns_and_rows_agree(
    rows: list[tuple[str | None, str | None, tuple[int, int] | None]],
    policy: AmbiguousTime,
    zero_date: ZeroDate,
    before: bool,
) -> None:
    """Whatever is known of the times, in any mixture, and in the row before."""
    options = {**SUMMED, "producer": "new", "avro_include_before_value": before}
    codec = codec_with(MemorySchemaRegistry(), **options)
    messages, values = [], []
    for at, (made, paid, folds) in enumerate(rows):
        row: dict[str, Any] = {"id": at, "made": made, "paid": paid}
        meant = {
            name: FoldedTime(row[name], fold)
            for name, fold in zip(("made", "paid"), folds or (), strict=False)
            if row[name] is not None
        }
        event = _summed({**row, **meant}, SCHEMA) if folds else change(after=row, schema=SCHEMA)
        messages.append(message_of(codec, event._replace(op=Op.UPDATE, before={**row, "paid": made})))
        values.append(row_bytes({**row, "id": str(at)}, mysqlType=_TYPES))
    _checked(codec, messages, policy, zero_date)
    canal = open_codec("canal-json", options=CodecOptions(time_zone="Europe/Berlin"))
    _checked(canal, [Message("t", 0, at, None, one) for at, one in enumerate(values)], policy, zero_date)


_TYPES: Final = {"id": "int", "made": "timestamp", "paid": "timestamp"}
