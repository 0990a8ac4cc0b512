"""The statement that stands for a table of Postgres gives its columns as a person's definition would."""

from __future__ import annotations

import pytest

from tidesink.ddl.catalog import read_postgres_tables
from tidesink.events import UNKNOWN_DEFAULT, Column, ColumnType
from tidesink.source_database.postgres import _constraints, _defined_type


def _column(words: str) -> Column:
    (found,) = read_postgres_tables(f"CREATE TABLE shop.t (a {words})", "public")
    return found.columns[0]


@pytest.mark.parametrize(
    ("sql", "word", "kind", "category", "expected"),
    [
        ("smallint", "int2", "b", "N", "smallint"),
        ("oid", "oid", "b", "N", "oid"),
        ("numeric(10,2)", "numeric", "b", "N", "numeric(10,2)"),
        ("numeric", "numeric", "b", "N", "numeric"),
        ("money", "money", "b", "N", "money"),
        ("real", "float4", "b", "N", "real"),
        ("boolean", "bool", "b", "B", "boolean"),
        ("character(5)", "bpchar", "b", "S", "char(5)"),
        ("public.citext", "citext", "b", "S", "text"),
        ("public.hstore", "hstore", "b", "U", "hstore"),
        ("jsonb", "jsonb", "b", "U", "jsonb"),
        ("uuid", "uuid", "b", "U", "uuid"),
        ("bit(8)", "bit", "b", "V", "bit(8)"),
        ("bit varying(10)", "varbit", "b", "V", "bit varying(10)"),
        # More than 64 bits come as bytes.
        ("bit(70)", "bit", "b", "V", "bytea"),
        ("bit varying", "varbit", "b", "V", "bytea"),
        ("date", "date", "b", "D", "date"),
        ("timestamp(3) without time zone", "timestamp", "b", "D", "timestamp(3)"),
        ("timestamp with time zone", "timestamptz", "b", "D", "timestamptz"),
        ("time(0) without time zone", "time", "b", "D", "time(0)"),
        ("time with time zone", "timetz", "b", "D", "timetz"),
        ("interval day to second", "interval", "b", "T", "interval"),
        ('shop."Mood"', "Mood", "e", "E", "text"),
        ("int4range", "int4range", "r", "R", "text"),
        ('shop."Mood"[]', "_Mood", "b", "A", "text[]"),
        ("shop.addr", "addr", "c", "C", "bytea"),
        ("public.geometry(Point,4326)", "geometry", "b", "U", "geometry"),
    ],
)
def test_types_are_those_of_a_definition(
    sql: str, word: str, kind: str, category: str, expected: str
) -> None:
    assert _column(_defined_type(sql, word, kind, category)).type == _column(expected).type


@pytest.mark.parametrize(
    ("value", "default", "first"),
    [
        ("'new'::character varying", "new", None),
        ("'it''s'::text", "it's", None),
        ("'-5'::integer", "-5", None),
        ("1.50", "1.50", None),
        ("true", "true", None),
        ("NULL::text", None, None),
        ("", None, None),
        ("now()", None, UNKNOWN_DEFAULT),
        ("nextval('shop.t_a_seq'::regclass)", None, UNKNOWN_DEFAULT),
        ("('x'::text || 'y'::text)", None, UNKNOWN_DEFAULT),
    ],
)
def test_defaults_are_constants_or_computed(value: str, default: str | None, first: str | None) -> None:
    found = _column(f"text{_constraints(('a', True, 'text', 'text', 'b', 'S', value))}")
    assert (found.type, found.nullable) == (ColumnType("text"), False)
    assert (found.default, found.origin_default) == (default, first)
