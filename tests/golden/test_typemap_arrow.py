"""TiCDC's own texts as columns: every one is read, and as the scalar readers read it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from datetime import timezone
from typing import Any

import pyarrow as pa
import pytest

from tests.arrow_columns import POLICIES, assert_reads_as_scalar
from tests.golden.vectors import find_folders
from tests.vectors import vectors_dir
from tidesink.errors import ConfigError
from tidesink.typemap.arrow import from_text
from tidesink.typemap.mysql_types import parse_sql_type


def test_no_text_of_the_producer_is_left(pytestconfig: pytest.Config) -> None:
    columns: dict[str, list[str | None]] = defaultdict(list)
    for folder in find_folders(vectors_dir(pytestconfig)):
        for record in folder.rows("canal-json"):
            for word, text in _texts(record.message.value):
                columns[word].append(text)
    assert len(columns) > 20
    for word, texts in columns.items():
        column_type = parse_sql_type(word)
        for zero_date in POLICIES:
            assert_reads_as_scalar(texts, column_type, zero_date=zero_date, time_zone=timezone.utc)
        found = from_text(pa.array(texts), column_type, zero_date="null", time_zone=timezone.utc)
        assert found.unproven is None, word


def _texts(value: bytes | None) -> Iterator[tuple[str, str | None]]:
    try:
        message = json.loads(value or b"{}")
    except ValueError:  # compressed
        return
    types: dict[str, str] = message.get("mysqlType") or {}
    rows: list[dict[str, Any]] = [*(message.get("data") or []), *(message.get("old") or [])]
    for row in rows:
        for name, text in row.items():
            if name in types and _is_known(types[name]):
                yield types[name], text


def _is_known(word: str) -> bool:
    try:
        parse_sql_type(word)
    except ConfigError:
        return False
    return True
