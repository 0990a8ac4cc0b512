"""Names of columns and tables are compared as TiDB does: by Go's lower case, one character at a time."""

from __future__ import annotations

import sys

import pytest

from tests.columns import ID
from tests.unit.codecs.canal_json.messages import message_of, row_bytes
from tidesink.codecs.canal_json.codec import CanalJsonCodec
from tidesink.ddl.catalog import TableDefinitions, parse_create_table
from tidesink.errors import SchemaRefusedError
from tidesink.events import ChangeEvent, Column, ColumnType, TableId, TableSchema, fold_name
from tidesink.sinks.targets.lake.tables import check_names
from tidesink.typemap.projection import Projection, project
from tidesink.typemap.target_schema import TargetSchema, shape_of

T = TableId("s", "t")
# Go's lower case of the first is the second; the third, Python's and Java's, is another name.
UPPER, LOWER, FINAL = "ΑΣ", "ασ", "ας"
NUMBER, LABELS = "decimal(9,2)", "enum('a','b')"
CREATE = f"create table t (id int primary key, {UPPER} {NUMBER}, {FINAL} {LABELS})"


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("Orders_1", "orders_1"),
        ("ÄÖ", "äö"),
        (UPPER, LOWER),
        (f"{UPPER} {UPPER}", f"{LOWER} {LOWER}"),
        (FINAL, FINAL),
        ("İd", "id"),
        ("ID", "id"),
        ("ıd", "ıd"),
        ("STRAẞE", "straße"),
        ("STRASSE", "strasse"),
        ("\N{KELVIN SIGN}", "k"),
        ("ſ", "ſ"),
        ("ǅ", "ǆ"),
        ("\N{DESERET CAPITAL LETTER LONG I}", "\N{DESERET SMALL LETTER LONG I}"),
    ],
)
def test_a_name_is_folded_as_go_lowers_it(name: str, folded: str) -> None:
    """The results are of ``strings.ToLower`` of Go 1.2x."""
    assert fold_name(name) == folded


def test_one_character_alone_has_a_lower_case_of_more_than_one() -> None:
    """What folding by the first character of Python's lower case relies on."""
    lowered = ((character, character.lower()) for character in map(chr, range(sys.maxunicode + 1)))
    assert [(character, low) for character, low in lowered if len(low) != 1] == [("İ", "i\u0307")]


def _after(*statements: str) -> TableSchema:
    definitions = TableDefinitions()
    for statement in (CREATE, *statements):
        definitions.apply(statement, "s")
    found = definitions.get(T)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("statement", "columns"),
    [
        (f"modify {LOWER} decimal(12,2)", {LOWER: "decimal(12,2)", FINAL: LABELS}),
        (f"modify {FINAL} enum('b')", {UPPER: NUMBER, FINAL: "enum('b')"}),
        (f"drop column {LOWER}", {FINAL: LABELS}),
        (f"drop column {FINAL}", {UPPER: NUMBER}),
        (f"rename column {LOWER} to {LOWER}2", {f"{LOWER}2": NUMBER, FINAL: LABELS}),
        (f"drop {FINAL}, rename column {LOWER} to {FINAL}", {FINAL: NUMBER}),
        # A name that is no keyword, though its upper case is one.
        (
            f"drop {FINAL}, add ﬁrst date, add c year after ﬁrst",
            {UPPER: NUMBER, "ﬁrst": "date", "c": "year(4)"},
        ),
    ],
)
def test_ddl_finds_a_column_by_its_folded_name(statement: str, columns: dict[str, str]) -> None:
    schema = _after(f"alter table t {statement}")
    assert {column.name: column.type.sql for column in schema.columns if column.name != "id"} == columns


def test_ddl_finds_an_added_column_by_its_folded_name() -> None:
    schema = _after(f"alter table t drop column `{FINAL}`, add İd2 date", "alter table t modify id2 year")
    types = {column.name: column.type.sql for column in schema.columns if column.name != "id"}
    assert types == {UPPER: NUMBER, "id2": "year(4)"}


def test_ddl_finds_a_table_by_its_folded_name() -> None:
    definitions = TableDefinitions()
    for name, column in ((UPPER, "a"), (FINAL, "b")):
        definitions.apply(f"create table {name} ({column} int primary key)", UPPER)
    definitions.apply(f"alter table {LOWER}.{LOWER} add c int", "other")
    definitions.apply(f"drop table {FINAL}", LOWER)
    found = definitions.get(TableId(UPPER, LOWER))
    assert found is not None
    assert [column.name for column in found.columns] == ["a", "c"]
    assert definitions.get(TableId(UPPER, FINAL)) is None


def test_rows_are_read_by_the_types_of_their_folded_names() -> None:
    definitions = TableDefinitions()
    definitions.apply(CREATE, "s")
    codec = CanalJsonCodec(definitions=definitions)
    for name in (UPPER, LOWER):  # a rename to another case alone
        row: dict[str, str | None] = {name: "1.50", FINAL: "2"}
        (event,) = codec.decode(
            message_of(row_bytes(row, mysqlType={"id": "int", name: "decimal", FINAL: "enum"}))
        )
        assert isinstance(event, ChangeEvent)
        assert event.after is not None
        assert (str(event.after[name]), event.after[FINAL]) == ("1.50", "b")


def _shape(*names: str) -> TargetSchema:
    return shape_of(TableSchema(T, (ID, *(Column(name, ColumnType("int")) for name in names))))


def test_settings_name_a_column_by_its_folded_name() -> None:
    laid = project(Projection(columns=("id", LOWER), rename={LOWER: "x"}), _shape(UPPER, FINAL), own=())
    assert [column.name for column in laid.shape.columns] == ["id", "x"]
    laid = project(Projection(except_columns=(LOWER,)), _shape(UPPER, FINAL), own=())
    assert [column.name for column in laid.shape.columns] == ["id", FINAL]


def test_a_key_is_named_by_its_folded_name() -> None:
    schema = parse_create_table(
        f"create table t ({UPPER} int, {FINAL} int, unique ({FINAL}))", default_schema="s"
    )
    shape = shape_of(schema, keys=(LOWER,))
    assert [column.name for column in shape.key_columns] == [UPPER]


@pytest.mark.parametrize(
    ("first", "second"), [(UPPER, FINAL), ("ıd2", "ID2"), ("ſ", "s"), ("µ", "μ"), ("ﬁ_Σ", "ﬁ_ς")]
)
def test_a_lake_refuses_columns_that_spark_takes_for_one(first: str, second: str) -> None:
    with pytest.raises(SchemaRefusedError, match=f"{first} and {second} have the same upper case"):
        check_names(_shape(first, second))
    with pytest.raises(SchemaRefusedError, match=f"{first} and {second} have the same upper case"):
        check_names(_shape(second), (first, "id"))


@pytest.mark.parametrize(("first", "second"), [("straße", "strasse"), ("é", "e"), ("ﬁ", "fi")])
def test_a_lake_takes_columns_that_spark_tells_apart(first: str, second: str) -> None:
    check_names(_shape(first, second), (first.upper() if first == "é" else first, "more"))
