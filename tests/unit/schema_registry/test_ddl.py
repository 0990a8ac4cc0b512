"""The table of docs/registry.md: what each DDL does to a table's schemas under BACKWARD and FORWARD."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from tidesink.codecs.flat_avro.schema import value_record
from tidesink.codecs.options import FlatAvroOptions
from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import TableId
from tidesink.schema_registry import incompatibilities

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "registry.md"
TABLE: Final = TableId("shop", "t")
CREATE: Final = (
    "CREATE TABLE shop.t (id INT PRIMARY KEY, i INT NOT NULL, v VARCHAR(9), n INT NOT NULL, "
    "d DECIMAL(10,2), e ENUM('a','b'))"
)
# By the first column of the page's table: the statement, and whether FORWARD takes it.
STATEMENTS: Final = {
    "ADD COLUMN, nullable or with a default": ("ALTER TABLE shop.t ADD COLUMN x INT", True),
    "ADD COLUMN NOT NULL without a default": ("ALTER TABLE shop.t ADD COLUMN x INT NOT NULL", True),
    "DROP COLUMN": ("ALTER TABLE shop.t DROP COLUMN n", False),
    "INT to BIGINT": ("ALTER TABLE shop.t MODIFY i BIGINT NOT NULL", False),
    "INT to VARCHAR": ("ALTER TABLE shop.t MODIFY i VARCHAR(9) NOT NULL", False),
    "VARCHAR to VARBINARY": ("ALTER TABLE shop.t MODIFY v VARBINARY(9)", True),
    "NOT NULL to NULL": ("ALTER TABLE shop.t MODIFY n INT", False),
    "DECIMAL(10,2) to DECIMAL(12,4)": ("ALTER TABLE shop.t MODIFY d DECIMAL(12,4)", True),
    "RENAME TABLE": ("RENAME TABLE shop.t TO shop.u", False),
    "ENUM with another member": ("ALTER TABLE shop.t MODIFY e ENUM('a','b','c')", True),
}


def schema(definitions: TableDefinitions, table: TableId) -> str:
    found = definitions.get(table)
    assert found is not None
    return value_record(found, table, FlatAvroOptions()).text


def documented() -> dict[str, str]:
    """First and second column of the page's table."""
    rows = re.findall(r"^\| ([^|]+) \| (taken|refused) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return dict(rows)


def test_every_row_is_tried() -> None:
    assert documented().keys() == STATEMENTS.keys()


@pytest.mark.parametrize("what", STATEMENTS)
def test_the_page_says_what_happens(what: str) -> None:
    statement, forward = STATEMENTS[what]
    definitions = TableDefinitions()
    definitions.declare(CREATE)
    old = schema(definitions, TABLE)
    (table,) = definitions.apply(statement)
    new = schema(definitions, table)
    assert new != old
    assert (not incompatibilities("BACKWARD", new, [old])) == (documented()[what] == "taken")
    assert (not incompatibilities("FORWARD", new, [old])) == forward
