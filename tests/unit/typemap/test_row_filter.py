"""Which conditions a filter may be, and that its text is Spark's but for the columns."""

from __future__ import annotations

import pytest

from tidesink.errors import ConfigError
from tidesink.typemap.projection import read_filter


@pytest.mark.parametrize(
    ("text", "columns", "bound"),
    [
        ("status = 'paid'", ("status",), "`r`.`Status` = 'paid'"),
        (
            "`status` <> 'status' AND status is not null",
            ("status",),
            "`r`.`Status` <> 'status' AND `r`.`Status` is not null",
        ),
        (
            "`a``b` > 1 or lower(STATUS) rlike '^a'",
            ("a`b", "STATUS"),
            "`r`.`a``b` > 1 or lower(`r`.`Status`) rlike '^a'",
        ),
        ("é between date'2020-01-01' and cast(status as date)", ("é", "status"), None),
        ("case when status > 1 then true else `user` is null end", ("status", "user"), None),
        ("status in ('x', 'y') -- those", ("status",), None),
        ("try_cast(status as decimal(10,2)) > 1.5", ("status",), None),
        ("status rlike '^today$' or status in ('nowhere', 'todays', 'not now', 'now%')", ("status",), None),
        ("status > timestamp'epoch' and status < 'epoch UTC'", ("status",), None),
    ],
)
def test_a_condition_is_the_text_with_the_rows_columns(
    text: str, columns: tuple[str, ...], bound: str | None
) -> None:
    found = read_filter(text)
    assert found is not None
    assert found.columns == columns
    names = {"status": "Status", "a`b": "a`b", "é": "é", "user": "user"}
    if bound is not None:
        assert found.bound("r", names) == bound


def test_true_takes_no_row_away() -> None:
    assert read_filter(" TRUE ") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a in (select 1)", "subquery"),
        ("exists(select 1)", "subquery"),
        ("count(*) > 1", "aggregate"),
        ("sum(a) over () > 1", "window"),
        ("any(a)", "calls any"),
        ("explode(a)", "calls explode"),
        ("a > rand()", "not the same"),
        ("a > rand(1)", "calls rand"),
        ("`rand`(1) > a", "calls rand"),
        ("a > now()", "not the same"),
        ("d > current_date", "not the same"),
        ("current_user = a", "not the same"),
        ("uuid() = a", "not the same"),
        ("t > timestamp 'now'", "not the same"),
        ("created_at < 'today'", "not the same"),
        ("created_at in ('2020-01-01', ' Yesterday ')", "not the same"),
        ("created_at < TIMESTAMP'today UTC'", "not the same"),
        ("created_at < cast('now UTC' as timestamp)", "not the same"),
        ("created_at < 'tomorrow+01:00'", "not the same"),
        ("created_at < r'today'", "not the same"),
        ("created_at < 'to' 'day'", "not the same"),
        ("created_at < '\\u006eow'", "not the same"),
        ("created_at < date('\ttoday\t')", "not the same"),
        ("created_at < 'today'", r"Use a fixed time.*rlike '\^today\$'"),
        ("my_udf(a)", "calls my_udf"),
        ("reflect('java.lang.System', 'exit', a)", "calls reflect"),
        ("a = 1; drop table t", "not one condition"),
        ("drop table t", "statement|no column"),
        ("", "not one condition"),
        ("a +", "not Spark SQL"),
        ("a) or (b", "not Spark SQL"),
        ("a + 1", "not a condition"),
        ("'x'", "not a condition"),
        ("1 = 1", "no column"),
        ("t.a = 1", "bare names"),
        ("a = :given", "parameter"),
        ("exists(a, x -> x > 1)", "lambda|subquery"),
    ],
)
def test_what_is_no_condition_on_a_row_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_filter(text)
