"""No pattern is refused that Java takes, and no type that Spark takes for a condition."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from tests.full import TEST_ALL
from tidesink.errors import ConfigError
from tidesink.events import Column, ColumnType, TableId, TableSchema
from tidesink.sinks.decode.filtering import check_condition
from tidesink.typemap.projection import FUNCTIONS, RowFilter, _mentions, _parsed, check_types, java_fault
from tidesink.typemap.target_schema import TargetSchema, shape_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

_PIECES = st.sampled_from(
    [
        *"ab*+?(){}[]|\\^$&-,.",
        "{2}",
        "{1,}",
        "(?:",
        "(?i)",
        "(?<n>",
        "(?=",
        r"\Q",
        r"\E",
        r"\p{L}",
        r"\d",
        "[^",
        "&&",
    ]
)


def _java_takes(spark: SparkSession, pattern: str) -> bool:
    jvm: Any = spark._jvm
    try:
        jvm.java.util.regex.Pattern.compile(pattern)
    except (Py4JJavaError, PySparkException):
        return False
    return True


@settings(
    max_examples=400 if TEST_ALL else 100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(_PIECES, max_size=7).map("".join))
@example("[]a]")
@example("a{2}*")
@example("a**")
@example("[a&&]]")
def test_java_takes_no_pattern_that_is_refused(spark: SparkSession, pattern: str) -> None:
    if java_fault(pattern) is not None:
        assert not _java_takes(spark, pattern)


def _shape() -> TargetSchema:
    kinds = {"id": "bigint", "n": "int", "name": "text", "at": "datetime", "day": "date", "raw": "blob"}
    columns = [Column(name, ColumnType(kind), handle=name == "id") for name, kind in kinds.items()]
    return shape_of(TableSchema(TableId("shop", "t"), tuple(columns)))


_ARGUMENTS = (
    "", "n", "name", "at", "day", "raw", "n, n", "name, 'a'", "name, name", "day, n", "name, n",
    "n > 1, n > 2", "n > 1, name, 'b'", "name, 1, 2", "n, name, name", "n > 1", "array(n), n", "'YEAR', day",
)  # fmt: skip


def _vetted_for_its_type_alone(text: str) -> RowFilter | None:
    """A filter whose types are refused, as it would go to Spark if they were not looked at."""
    try:
        tree = _parsed(text)
        found = RowFilter(text, tuple(sorted(_mentions(tree, text), key=lambda one: one.start)))
    except ConfigError:
        return None
    try:
        check_types(found, _shape())
    except ConfigError:
        return found
    return None


def _refused_calls(name: str) -> Iterator[tuple[str, RowFilter]]:
    """A few calls of a function that are refused for their type: to ask Spark about each takes time."""
    for form in ("{}", "n > 1 and {}"):
        texts = (form.format(f"{name}({arguments})") for arguments in _ARGUMENTS)
        found = ((text, _vetted_for_its_type_alone(text)) for text in texts)
        yield from islice(((text, one) for text, one in found if one is not None), 2)


def test_spark_takes_no_condition_that_is_refused_for_its_type(spark: SparkSession) -> None:
    """Every function a filter may call, with some arguments that it is refused with, and beside AND."""
    refused, taken = 0, []
    for text, found in (pair for name in sorted(FUNCTIONS) for pair in _refused_calls(name)):
        refused += 1
        try:
            check_condition(found, _shape(), spark)
        except (ConfigError, Py4JJavaError):  # some calls of the wrong types Spark calls its own fault
            continue
        taken.append(text)
    assert taken == []
    assert refused > 100
