"""A column that is left out never comes to the target by another name that the source gives it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.lagging_registry import text_of
from tests.memory_target import CAPABILITIES
from tests.unit.config.samples import CANAL_JSON, changed, right
from tests.unit.sinks.schema_changes.ddl_bed import Bed, said
from tidesink.codecs.canal_json.scan import RowWords
from tidesink.config.fields import ChangePolicy, SchemaChanges
from tidesink.ddl.catalog import TableDefinitions
from tidesink.errors import ConfigError, SchemaRefusedError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.canal_json_types import _with_replaced
from tidesink.sinks.decode.flat_avro import flat_avro_plan
from tidesink.sinks.decode.plans import SubjectSchemas
from tidesink.sinks.laws.modes import first_shape
from tidesink.sinks.schema_changes.decisions import (
    Accepted,
    Pending,
    Policies,
    SchemaDecision,
    decide_changes,
    pending_of,
)
from tidesink.sinks.targets.base import SchemaGap
from tidesink.typemap.projection import Projection, project
from tidesink.typemap.target_schema import TargetSchema, shape_of

TABLE = TableId("shop", "orders")
CREATE = "id INT PRIMARY KEY, name INT, phone INT"
NO_PHONE = Projection(except_columns=("Phone",))


def _shape(*names: str) -> TargetSchema:
    """A table's shape from its columns by name, ``id`` its key."""
    columns = (Column(name, ColumnType("int"), handle=name == "id") for name in names)
    return shape_of(TableSchema(TABLE, tuple(columns)))


# Where DDL tells.


def _waits(bed: Bed, *statements: str) -> Pending:
    """What the table waits with after some DDL, in a batch and in a new worker's first plan."""
    for statement in statements:
        bed.ddl.alter(statement)
    found = []
    for _ in ("this worker", "a new one, by the state that was written down"):
        bed.inner._newer_ddl(cast("Any", None))
        with pytest.raises(SchemaRefusedError) as refused:
            bed.decoding.catch_up((), None)
        with pytest.raises(SchemaRefusedError):
            bed.batch()
        found.append(pending_of(refused.value))
        bed.ddl.definitions = TableDefinitions.from_json(bed.ddl.definitions.to_json())
        bed.start()
    assert found[0] == found[1]
    assert found[0] is not None
    return found[0]


@pytest.mark.parametrize("rename", ["pause", "ignore", "apply"])
def test_a_rename_of_an_excluded_column_waits_until_both_names_are_listed(rename: ChangePolicy) -> None:
    bed = Bed(CREATE, NO_PHONE, rename=rename)
    waits = _waits(bed, "ALTER TABLE t RENAME COLUMN phone TO mobile")
    assert said((waits,)) == [("rename", "phone mobile", ())]
    assert "Add mobile to it" in waits.reason
    assert bed.table.gap(bed.inner.columns().shape).columns == ("id", "name")
    bed.projection = Projection(except_columns=("phone", "Mobile"))
    bed.start()
    assert bed.batch() == ()
    assert bed.columns() == ("id", "name")
    assert bed.alter("ADD COLUMN city INT") == ()
    assert bed.columns() == ("id", "name", "city")
    # A row from before the rename brings the old name into the plan.
    bed.read(RowWords(("id", "name", "phone"), dict.fromkeys(("phone",), "int"), ["id"], 0))
    assert "phone" in bed.inner.columns().shape.by_name
    assert bed.columns() == ("id", "name", "city")


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE t DROP COLUMN mobile",),
        ("DROP TABLE t", "CREATE TABLE t (id INT PRIMARY KEY, name INT)"),
        ("ALTER TABLE t ADD COLUMN phone INT",),
        ("ALTER TABLE t RENAME COLUMN mobile TO phone",),
        ("ALTER TABLE t RENAME COLUMN mobile TO cell", "ALTER TABLE t DROP COLUMN cell"),
    ],
    ids=["dropped", "made again", "added again", "renamed back", "renamed and dropped"],
)
def test_it_waits_whatever_becomes_of_the_new_name(statements: tuple[str, ...]) -> None:
    bed = Bed(CREATE, NO_PHONE, drop="ignore")
    waits = _waits(bed, "ALTER TABLE t RENAME COLUMN phone TO mobile", *statements)
    assert waits.change.kind == "rename"
    assert "mobile" in waits.reason


def test_a_list_that_names_the_new_name_alone_waits_for_the_old_one() -> None:
    bed = Bed(CREATE.replace("phone", "mobile"), Projection(except_columns=("mobile",)))
    bed.ddl.definitions = TableDefinitions()
    bed.ddl.alter(f"CREATE TABLE t ({CREATE})")
    waits = _waits(bed, "ALTER TABLE t RENAME COLUMN phone TO mobile")
    assert "Add phone to it" in waits.reason


def test_names_that_are_swapped_wait_though_the_columns_are_the_same() -> None:
    bed = Bed(CREATE, NO_PHONE)
    inner = bed.inner.columns()
    swap = ("phone TO tmp", "name TO phone", "tmp TO name")
    waits = _waits(bed, *(f"ALTER TABLE t RENAME COLUMN {part}" for part in swap))
    assert waits.change.kind == "rename"
    assert inner.shape.by_name.keys() == bed.inner.columns().shape.by_name.keys()


def test_a_key_column_is_never_left_out_by_a_rename() -> None:
    bed = Bed("uid INT PRIMARY KEY, a INT")
    bed.ddl.alter("ALTER TABLE t RENAME COLUMN uid TO id, ADD COLUMN uid INT")
    bed.projection = Projection(except_columns=("uid",))
    bed.start()
    assert [column.name for column in bed.decoding.columns().shape.columns] == ["id", "a"]


def test_renames_are_those_of_the_table_alone() -> None:
    definitions = TableDefinitions()
    rename = "ALTER TABLE t RENAME COLUMN phone TO mobile"
    for statement in (f"CREATE TABLE t ({CREATE})", rename, "RENAME TABLE t TO u"):
        definitions.apply(statement, "s")
    assert definitions.renames(TableId("s", "u")) == ()
    assert definitions.renames(TableId("s", "t")) == (("phone", "mobile"),)


def test_a_column_that_never_was_is_still_refused() -> None:
    with pytest.raises(ConfigError, match="has no column fone"):
        project(Projection(except_columns=("fone",)), _shape("id", "phone"), own=(), past={"phone"})
    project(NO_PHONE, _shape("id", "mobile"), own=(), past={"phone"})


# Where nothing tells.


def _writers(*schemas: tuple[str, ...]) -> TargetSchema:
    """The shape of a flat-avro table after these schemas of its rows, oldest first."""
    texts = {number: text_of(*names) for number, names in enumerate(schemas, start=10)}
    return flat_avro_plan(TABLE, SubjectSchemas({1: text_of("id")}, texts)).shape


BEFORE, AFTER = ("id", "name", "phone"), ("id", "name", "mobile")


def _schema_decision(
    present: tuple[str, ...],
    *schemas: tuple[str, ...],
    projection: Projection = NO_PHONE,
    add: ChangePolicy = "apply",
    accepted: Accepted | None = None,
) -> SchemaDecision:
    """What becomes of the columns of a target that has ``present`` ones."""
    shape = project(projection, _writers(*schemas), own=()).shape
    added = tuple(column.name for column in shape.columns if column.name not in present)
    policies = Policies(SchemaChanges(add=add), accepted or {}, CAPABILITIES, projection=projection)
    return decide_changes(SchemaGap(present, added), shape, policies, None)


def test_a_column_that_comes_as_an_excluded_one_goes_waits_for_a_person() -> None:
    schema_decision = _schema_decision(("id", "name"), BEFORE, AFTER)
    assert said(schema_decision.pending) == [("add", "Phone int", ("apply", "ignore"))]
    assert "it may be an excluded column under a new name, because Phone disappeared" in (
        schema_decision.pending[0].reason
    )
    digest = schema_decision.pending[0].change.digest
    columns: dict[ChangePolicy, list[str]] = {"apply": ["id", "name", "mobile"], "ignore": ["id", "name"]}
    for policy, names in columns.items():
        schema_decision = _schema_decision(("id", "name"), BEFORE, AFTER, accepted={digest: policy})
        assert ([column.name for column in schema_decision.given.columns], schema_decision.pending) == (
            names,
            (),
        )


@pytest.mark.parametrize("add", ["apply", "ignore"])
def test_one_that_the_target_still_has_from_before_waits_too(add: ChangePolicy) -> None:
    schemas = (("id", "phone", "mobile"), ("id", "phone"), ("id", "mobile"))
    schema_decision = _schema_decision(("id", "mobile"), *schemas, add=add)
    assert said(schema_decision.pending) == [("add", "Phone int", ("apply", "ignore"))]
    assert "because Phone disappeared at the same time" in schema_decision.pending[0].reason
    digest = schema_decision.pending[0].change.digest
    columns: dict[ChangePolicy, list[str]] = {"apply": ["id", "mobile"], "ignore": ["id"]}
    for policy, names in columns.items():
        schema_decision = _schema_decision(("id", "mobile"), *schemas, add=add, accepted={digest: policy})
        assert ([column.name for column in schema_decision.given.columns], schema_decision.pending) == (
            names,
            (),
        )
    # What the config asks for by its name is no doubt.
    asked = Projection(except_columns=("phone",), rename={"mobile": "number"})
    assert _schema_decision(("id", "number"), *schemas, projection=asked).pending == ()


def test_what_is_left_out_anyway_does_not_wait() -> None:
    schema_decision = _schema_decision(("id", "name"), BEFORE, AFTER, add="ignore")
    assert (schema_decision.pending, schema_decision.omitted) == ((), ("mobile",))
    assert _schema_decision(
        ("id", "name"), BEFORE, AFTER, projection=Projection(except_columns=("phone", "mobile"))
    ) == (_schema_decision(("id", "name"), BEFORE))


@pytest.mark.parametrize(
    "schemas",
    [
        (BEFORE, (*BEFORE, "mobile"), AFTER),
        (BEFORE, ("id", "name"), AFTER),
        (BEFORE, ("id", "phone", "mobile")),
        (BEFORE, (*BEFORE, "mobile")),
    ],
    ids=["beside it first", "gone before", "another one went", "only added"],
)
def test_a_column_that_comes_for_itself_is_added(schemas: tuple[tuple[str, ...], ...]) -> None:
    schema_decision = _schema_decision(("id", "name"), *schemas)
    assert (schema_decision.pending, schema_decision.omitted) == ((), ())
    assert "mobile" in schema_decision.given.by_name


def test_a_column_renamed_twice_is_doubted_under_the_last_name_too() -> None:
    schema_decision = _schema_decision(("id", "name"), BEFORE, AFTER, ("id", "name", "cell"))
    assert [one.change.column for one in schema_decision.pending] == ["mobile", "cell"]


def test_a_new_name_that_the_config_gives_is_asked_for() -> None:
    projection = Projection(except_columns=("phone",), rename={"mobile": "Number"})
    assert _schema_decision(("id", "name"), BEFORE, AFTER, projection=projection).pending == ()


def test_a_table_that_is_made_now_is_made_without_it() -> None:
    settings = right(changed(CANAL_JSON, defaults={"except_column_list": "phone"})).table_config(TABLE)
    shape = project(settings.projection, _writers(BEFORE, AFTER), own=()).shape
    assert [column.name for column in shape.columns] == ["id", "name", "mobile"]
    assert [column.name for column in first_shape(shape, settings).columns] == ["id", "name"]


def test_rows_that_alone_tell_of_a_column_tell_what_it_never_stood_beside() -> None:
    def instead(*forms: str, reported: str = "") -> dict[str, frozenset[str]]:
        words = [RowWords(tuple(form.split()), {}, ["id"], at) for at, form in enumerate(forms)]
        names = dict.fromkeys(name for form in forms for name in form.split())
        shape = _with_replaced(_shape(*names), words, reported.split())
        return {column.name: column.instead_of for column in shape.columns if column.instead_of}

    assert instead("id phone", "id mobile", reported="id phone") == {"mobile": {"phone"}}
    assert instead("id phone", "id phone mobile", "id mobile", reported="id phone") == {}
    assert instead("id phone", "id mobile", reported="id phone mobile") == {}
