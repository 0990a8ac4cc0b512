"""What of a filter's types and patterns is refused without Spark; and that what may be right is not."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contracts.targets_bed import shape
from tests.unit.config.samples import CANAL_JSON, changed, right, wrong
from tidesink.cli.table_plans import plan_of
from tidesink.errors import ConfigError
from tidesink.typemap.projection import FUNCTIONS, check_types, java_fault, read_filter

DEFINITION = "create table shop.t (id bigint primary key, name varchar(9), at datetime, price decimal(9,2))"
# Spark's functions among those a filter may call whose answer is a truth value.
CONDITIONS = {
    "array_contains": "array('a'), name",
    "between": "",
    "boolean": "name",
    "contains": "name, 'a'",
    "endswith": "name, 'a'",
    "equal_null": "name, 'a'",
    "isnan": "double(id)",
    "isnotnull": "name",
    "isnull": "name",
    "luhn_check": "name",
    "regexp": "name, 'a'",
    "regexp_like": "name, 'a'",
    "rlike": "name, 'a'",
    "startswith": "name, 'a'",
}


def _problem(text: str) -> str | None:
    """What validate says of a filter of a table that the config defines."""
    settings: dict[str, Any] = changed(
        CANAL_JSON, tables=[{"name": "shop.t", "definition": DEFINITION, "filter": text}]
    )
    try:
        right(settings)
    except AssertionError:
        return next(iter(wrong(settings).values())).reason
    return None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("id", "bigint"),
        ("length(name)", "int"),
        ("upper(name)", "string"),
        ("regexp_replace(name, 'a')", "string"),
        ("cast(name as int)", "int"),
        ("case when id > 1 then name end", "string"),
        ("date_add(at, 1)", "date"),
        ("coalesce(price, 0)", "decimal"),
        ("id > 1 and price", "decimal(9, 2)"),
        ("not (id)", "bigint"),
        ("id > 1 or (at and id < 9)", "timestamp"),
    ],
)
def test_a_value_is_no_condition(text: str, named: str) -> None:
    found = _problem(text)
    assert found is not None
    assert f"is a value of type {named}" in found
    assert "not a condition" in found


@pytest.mark.parametrize(
    "text",
    [
        "boolean(id)",
        "id > 1 and name",
        "id > 1 and left(id, 2)",
        "coalesce(cast(id as boolean), true)",
        "if(id > 1, name = 'a', name rlike '^b')",
        "case when id > 1 then true end",
        "nullif(id > 1, false)",
        "id in (1, 2) and not name like 'a%'",
        *(f"{name}({arguments})" for name, arguments in CONDITIONS.items() if arguments),
    ],
)
def test_what_may_be_a_condition_is_left_to_spark(text: str) -> None:
    assert _problem(text) is None


def test_the_functions_above_may_be_called() -> None:
    assert set(CONDITIONS) <= FUNCTIONS


def test_what_needs_no_column_is_known_where_nothing_is_defined() -> None:
    refused = wrong(changed(CANAL_JSON, defaults={"filter": "length(name)"}))
    assert "is a value of type int" in refused["defaults.filter"].reason
    right(changed(CANAL_JSON, defaults={"filter": "ok"}))


def test_plan_knows_the_types_that_the_source_has() -> None:
    config = right(changed(CANAL_JSON, defaults={"filter": "id > 1 and amount"}))
    problem = plan_of(config, "app", shape(), types_from="ddl").problem
    assert problem is not None
    assert "an operand of AND, OR or NOT in 'id > 1 and amount' is a value of type" in problem


def test_the_worker_refuses_it_too() -> None:
    found = read_filter("amount")
    assert found is not None
    with pytest.raises(ConfigError, match="filter: 'amount' is a value of type"):
        check_types(found, shape())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name rlike '('", "has a ( without a )"),
        ("name not rlike 'a)'", "has a ) without a ("),
        ("name regexp '[a-'", "has a [ without a ]"),
        ("regexp_like(name, '*a')", "has a * with nothing before it to repeat"),
        ("regexp_extract(concat(name, 'a'), 'a{x}', 0) = 'a'", "has a { that does not begin a count"),
        # Spark's texts have escapes of their own: this is a bare parenthesis.
        (r"name rlike '\('", "has a ( without a )"),
        ("name rlike r'\\'", "ends in a backslash"),
    ],
)
def test_a_pattern_that_is_none_is_refused(text: str, said: str) -> None:
    refused = wrong(changed(CANAL_JSON, defaults={"filter": text}))
    assert said in refused["defaults.filter"].reason


@pytest.mark.parametrize(
    "text",
    [
        r"name rlike '\\('",
        r"name rlike r'^\d{2,}[(]\)$'",
        "name rlike '(' ')'",
        "name rlike concat('(', ')')",
        "regexp_replace(name, 'a', '(') = 'b'",
        "concat(name, '(') rlike 'a'",
        "name in ('a', '(') and name like '('",
    ],
)
def test_other_texts_are_no_patterns(text: str) -> None:
    right(changed(CANAL_JSON, defaults={"filter": text}))


@pytest.mark.parametrize(
    "pattern",
    [
        "",
        r"\Q(*\E+",
        r"\p{L}+\x{1F600}*",
        "[]a]+[^]]",
        "[a-z&&[^b-d]]{2,3}+",
        "(?i)a(?<name>b)(?<=c)(?:d|)*?",
        "^*$|",
        "{2}",
        "}a]",
        "(?x) a # (",
        r"\c((a)",
    ],
)
def test_patterns_that_java_takes_are_not_refused(pattern: str) -> None:
    assert java_fault(pattern) is None


@pytest.mark.parametrize("pattern", ["a**", "(?:+)", "a|?", "a{,3}", "[]", "[^]", r"\Qa\E)", "(?<n>", "a\\"])
def test_patterns_that_java_refuses_are_refused(pattern: str) -> None:
    assert java_fault(pattern) is not None
