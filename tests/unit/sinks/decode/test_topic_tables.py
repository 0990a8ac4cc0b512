"""What is known of a topic's tables outlives the worker, also where the state store failed once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidesink.errors import StateStoreError
from tidesink.events import TableId
from tidesink.sinks.decode.topic_ddl import TopicTables
from tidesink.sinks.state.sql_store import SqlStateStore

T, U = TableId("s", "t"), TableId("s", "u")


class _Failing(SqlStateStore):
    """A store that cannot keep a document now and then."""

    fails = False

    def save_document(self, kind: str, name: str, document: Any) -> None:
        if self.fails:
            raise StateStoreError("locked")
        super().save_document(kind, name, document)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[_Failing]:
    opened = _Failing(str(tmp_path / "state.db"))
    yield opened
    opened.close()


def _tables(store: SqlStateStore) -> TopicTables:
    return TopicTables("cdc", pipeline="p", store=store)


def test_a_table_is_known_once_it_is_kept(store: _Failing) -> None:
    tables = _tables(store)
    tables.add([T])
    store.fails = True
    with pytest.raises(StateStoreError):
        tables.add([U])
    assert tables.known() == (T,)
    store.fails = False
    tables.add([U])
    assert tables.known() == _tables(store).known() == (T, U)
