"""``docs/config.schema.json`` and the models judge a config alike.

A config is changed at one place, to any value of YAML. What the schema refuses, ``validate`` refuses; what
the models' own fields refuse, the schema refuses, but for the texts that only a parser can judge.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed
from tidesink.config import parse_config
from tidesink.config.load import config_schema
from tidesink.config.models import Config

VALIDATOR = jsonschema.Draft202012Validator(config_schema())
# A text that has the right type: whether it is a time zone, an address, a rule, only its parser says.
JUDGED_BY_PARSERS = {"value_error"}

WHOLE = changed(
    FLAT_AVRO,
    defaults={
        "mode": "upsert",
        "stored_as_scd_type": 1,
        "sequence_by": "kafka",
        "deletes": "soft",
        "zero-date": "null",
        "bad-record": "pause",
    },
    tables=[{"name": "a.b", "keys": ["id"], "topic": "t", "deletes": "hard"}, {"match": "c.*"}],
    batch={"max-records": 5, "max-bytes": "64MiB", "max-tables": 2, "poll-interval": "1s"},
    retry={"for": "5m"},
    state="./x.db",
    spark={"master": "local[1]", "conf": {"spark.a": "b"}},
    target={"type": "delta", "path": "./lake", "table": "{schema}/{table}"},
    source__time_zone="UTC",
    source__enable_tidb_extension=True,
    source__kafka={"client.id": "x"},
)
INTO_KAFKA = changed(
    CANAL_JSON,
    target={
        "type": "kafka",
        "brokers": "k:9092",
        "topic": "to_{schema}_{table}",
        "protocol": "avro",
        "schema-registry": {"url": "http://127.0.0.1:8081"},
        "partition-num": 5,
        "max-message-bytes": "1MiB",
        "kafka": {"client.id": "x"},
    },
)
INTO_HTTP = changed(
    CANAL_JSON,
    target={
        "type": "http",
        "url": "http://127.0.0.1/{table}",
        "headers": {"x": "y"},
        "auth": {"username": "me", "password": "x"},
        "timeout": "5s",
        "batch-rows": 5,
    },
)
BASES = [FLAT_AVRO, CANAL_JSON, WHOLE, INTO_KAFKA, INTO_HTTP]

# Not here: values that the models convert, since ${env:…} gives texts ("5" to 5, "yes" and 1 to true). The
# schema asks for a setting's own type.
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(2, 2**42),
    st.integers(-3, -1),
    st.floats(allow_nan=False, allow_infinity=False, width=32).filter(lambda one: not one.is_integer()),
    st.sampled_from(
        [
            "",
            "x",
            "a.b",
            "10s",
            "64MiB",
            "null",
            "flat-avro",
            "delta",
            "precise",
            "${env:X}",
            "{x}",
        ]
    ),
)
VALUES = st.one_of(
    SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(st.sampled_from(["x", "name", "url"]), SCALARS)
)


def places(part: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a config, sections included."""
    inner = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [place, *(found for name, value in inner for found in places(value, (*place, name)))]


def with_value(part: Any, place: tuple[Any, ...], value: Any) -> Any:
    """A copy with the value at one place replaced, or put there."""
    if not place:
        return value
    name, *rest = place
    if isinstance(part, list):
        return [with_value(one, tuple(rest), value) if at == name else one for at, one in enumerate(part)]
    return {**part, name: with_value(part.get(name), tuple(rest), value)}


@st.composite
def configs(draw: st.DrawFn) -> Any:
    base = draw(st.sampled_from(BASES))
    place = draw(st.sampled_from(places(base)))
    if draw(st.booleans()):
        return with_value(base, place, draw(VALUES))
    owner = place[:-1]
    return with_value(
        base, (*owner, draw(st.sampled_from(["x", "keys", "deletes", "time-zone"]))), draw(VALUES)
    )


def refused_shapes(config: Any) -> list[str]:
    """The places that the models refuse for their shape alone."""
    try:
        Config.model_validate(config, context={"base": Path("/base")})
    except ValidationError as error:
        found = error.errors(include_url=False)
        return [f"{one['loc']}: {one['type']}" for one in found if one["type"] not in JUDGED_BY_PARSERS]
    return []


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(configs())
def test_a_right_config_fits_the_schema(config: Any) -> None:
    loaded, _ = parse_config(config, base=Path("/base"), environment={"X": "x"})
    if loaded is not None:
        assert [f"{one.json_path}: {one.message}" for one in VALIDATOR.iter_errors(config)] == []


@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
@given(configs())
def test_what_the_models_refuse_by_shape_the_schema_refuses(config: Any) -> None:
    if "${env:" not in json.dumps(config) and (refused := refused_shapes(config)):
        assert not VALIDATOR.is_valid(config), refused


@pytest.mark.parametrize("base", BASES)
def test_the_configs_that_are_changed_are_right(base: dict[str, Any]) -> None:
    assert parse_config(base, base=Path("/base"), environment={})[1] == []
    assert VALIDATOR.is_valid(base)
