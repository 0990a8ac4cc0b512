"""Commit positions of a connector's rows: one at a time and by columns, as Debezium wrote their sources."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa
import pytest

from tidesink.codecs import open_codec
from tidesink.codecs.debezium.commit_positions import binlog_position, commit_position, commit_positions
from tidesink.codecs.options import DebeziumModes, DebeziumOptions
from tidesink.events import ChangeEvent, Message

_MARIADB: Final = {"connector": "mariadb", "file": "maria-bin.000012", "pos": 55268, "row": 0}
_POSTGRES: Final = {"connector": "postgresql", "lsn": 28135968, "sequence": '["28120128","28135968"]'}
_SNAPSHOT: Final = {"lsn": 28095688, "sequence": '[null,"28095688"]', "snapshot": "last"}

CASES: Final[tuple[tuple[dict[str, Any], int | None], ...]] = (
    ({**_MARIADB, "snapshot": "false"}, (12 << 32 | 55268) + 1),
    # All rows of a snapshot are as of where the connector goes on.
    ({**_MARIADB, "snapshot": "first_in_data_collection"}, 12 << 32 | 55268),
    ({**_MARIADB, "snapshot": "incremental"}, 12 << 32 | 55268),
    ({**_MARIADB, "snapshot": None, "connector": "mysql"}, (12 << 32 | 55268) + 1),
    ({**_MARIADB, "file": "binlog"}, None),
    ({**_MARIADB, "file": None}, None),
    ({**_MARIADB, "file": "binlog.1073741824"}, None),
    # The last transaction of a file may be of any size, and the next file begins behind it.
    ({**_MARIADB, "pos": (1 << 32) - 1}, 13 << 32),
    ({**_MARIADB, "pos": 1 << 32}, 13 << 32),
    ({**_MARIADB, "pos": 9 << 32, "snapshot": "false"}, 13 << 32),
    ({**_MARIADB, "pos": (1 << 63) - 1}, None),
    ({**_MARIADB, "pos": None}, None),
    ({**_MARIADB, "pos": -1}, None),
    ({**_POSTGRES, "snapshot": "false"}, 28120129),
    # The first transaction that a connector sends follows none that it knows.
    ({**_POSTGRES, "snapshot": "false", "sequence": '[null,"28135968"]'}, 28135969),
    ({**_POSTGRES, **_SNAPSHOT}, 28095688),
    ({**_POSTGRES, "snapshot": "false", "sequence": None}, None),
    ({**_POSTGRES, "snapshot": "false", "sequence": '["x","28135968"]'}, None),
    ({**_POSTGRES, "snapshot": "false", "sequence": '["28120128","28135968"]\n'}, None),
    ({**_POSTGRES, "snapshot": "false", "lsn": None}, 28120129),
)


@pytest.mark.parametrize(("source", "position"), CASES)
def test_a_row_is_behind_what_its_transaction_follows(source: dict[str, Any], position: int | None) -> None:
    assert commit_position(source) == position


@pytest.mark.parametrize("connector", ["mariadb", "mysql", "postgresql"])
@pytest.mark.parametrize("listed", [False, True])
def test_columns_have_what_single_rows_have(connector: str, *, listed: bool) -> None:
    cases = [(source, at) for source, at in CASES if source["connector"] == connector]
    names = sorted({name for source, _ in cases for name in source} - {"connector"})
    columns: Mapping[str, Any] = {name: [source.get(name) for source, _ in cases] for name in names}
    if not listed:
        columns = {name: pa.array(column) for name, column in columns.items()}
    found = commit_positions(connector, columns.__getitem__, names, count=len(cases))
    assert (found.type, found.to_pylist()) == (pa.int64(), [at for _, at in cases])


@pytest.mark.parametrize("names", [(), ("pos", "snapshot")])
@pytest.mark.parametrize("connector", ["mariadb", "postgresql", "oracle", ""])
def test_without_the_members_there_is_no_position(connector: str, names: tuple[str, ...]) -> None:
    columns = {"pos": pa.array([1, 2]), "snapshot": pa.array(["false", "false"])}
    found = commit_positions(connector, columns.__getitem__, names, count=2)
    assert found.to_pylist() == [None, None]


def test_a_rotation_of_the_log_raises_the_position() -> None:
    last, first = binlog_position("binlog.000009", (1 << 32) - 1), binlog_position("binlog.000010", 4)
    assert last is not None
    assert first is not None
    assert last < first


def test_rows_behind_four_gib_are_in_a_cut_with_their_transaction() -> None:
    """Not before it ends, and at the checkpoint behind it, wherever in its file it ends."""
    begins, ends = 1 << 30, 5 << 32
    rows = [commit_position({**_MARIADB, "pos": pos}) for pos in (begins, (1 << 32) - 1, 1 << 32, ends - 9)]
    file = str(_MARIADB["file"])
    before = binlog_position(file, begins)
    after = [binlog_position(file, ends), binlog_position("maria-bin.000013", 4)]
    assert before is not None
    for row in rows:
        assert row is not None
        assert all(row > before and checkpoint is not None and row <= checkpoint for checkpoint in after)


@pytest.mark.parametrize(
    ("added", "position"),
    [
        ({"__source_file": "binlog.000002", "__source_pos": 7, "__op": "u"}, (2 << 32 | 7) + 1),
        ({"__source_file": "binlog.000002", "__source_pos": 7, "__op": "r"}, 2 << 32 | 7),
        (
            {
                "__source_connector": "postgresql",
                "__source_lsn": 9,
                "__source_sequence": '["5","9"]',
                "__op": "c",
            },
            6,
        ),
        ({"__op": "u"}, None),
    ],
)
def test_flattened_rows_have_one_by_the_fields_that_were_added(
    added: dict[str, Any], position: int | None
) -> None:
    options = DebeziumOptions(debezium=DebeziumModes(commit_positions=True))
    codec = open_codec("debezium-json", options=options)
    value = json.dumps({"id": 1, "name": "a", "__deleted": "false", **added}).encode()
    (event,) = codec.decode(Message("bank.live.account", 0, 0, b'{"id": 1}', value))
    assert isinstance(event, ChangeEvent)
    assert event.commit_ts == position
