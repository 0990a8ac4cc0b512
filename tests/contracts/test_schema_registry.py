"""One contract, every registry: the one in memory, one that answers as Confluent's, and a real Apicurio."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.confluent_registry import confluent_servers
from tidesink.errors import IncompatibleSchemaError, RegistryError, SchemaNotFoundError
from tidesink.schema_registry import (
    CompatibilityLevel,
    MemorySchemaRegistry,
    RegisteredSchema,
    SchemaReader,
    SchemaRegistry,
    SchemaRegistryClient,
    SchemaWriter,
)
from tidesink.schema_registry.compatibility import verdict

start = pytest.fixture(confluent_servers, name="start")

REGISTRIES: dict[str, Callable[[pytest.FixtureRequest], SchemaRegistry]] = {
    "memory": lambda _: MemorySchemaRegistry(),
    # Nothing remembered: the contract is the server's.
    "apicurio": lambda request: SchemaRegistryClient(
        request.getfixturevalue("registry_url"), latest_ttl_seconds=0
    ),
    "confluent": lambda request: SchemaRegistryClient(
        request.getfixturevalue("start")().url, latest_ttl_seconds=0
    ),
}
MARKS = {"apicurio": [pytest.mark.servers]}


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, [])) for name in REGISTRIES])
def registry(request: pytest.FixtureRequest) -> Iterator[SchemaRegistry]:
    opened = REGISTRIES[request.param](request)
    yield opened
    opened.close()


@pytest.fixture
def subject() -> str:
    """A subject of this test alone: a real registry remembers the other tests."""
    return f"contract-{uuid.uuid4().hex}-value"


def record(*fields: tuple[str, Any] | dict[str, Any], name: str = "t", doc: str = "") -> str:
    """A record as TiCDC writes it; ``doc`` makes a text that no other test has registered."""
    shaped = [f if isinstance(f, dict) else {"name": f[0], "type": f[1]} for f in fields]
    head = {"type": "record", "name": name, "namespace": "default.test", "doc": doc}
    return json.dumps({**head, "fields": shaped})


A = ("a", "int")
OPTIONAL = {"name": "b", "type": ["null", "string"], "default": None}
BEFORE = {
    "name": "_ticdc_before",
    "default": None,
    "type": ["null", {"type": "record", "name": "t_before", "fields": [{"name": "a", "type": "int"}]}],
}


def test_it_is_a_schema_registry(registry: SchemaRegistry) -> None:
    assert isinstance(registry, SchemaRegistry)
    assert isinstance(registry, SchemaReader)
    assert isinstance(registry, SchemaWriter)


def test_what_is_registered_is_found_by_id_version_and_text(registry: SchemaRegistry, subject: str) -> None:
    first, second = record(A, doc=subject), record(A, OPTIONAL, doc=subject)
    ids = [registry.register(subject, first), registry.register(subject, second)]
    assert [registry.schema_by_id(one) for one in ids] == [first, second]
    assert registry.versions(subject) == [1, 2]
    assert registry.latest(subject) == RegisteredSchema(ids[1], second, subject, 2)
    assert registry.schema_by_version(subject, 1) == RegisteredSchema(ids[0], first, subject, 1)
    assert registry.lookup(subject, first) == RegisteredSchema(ids[0], first, subject, 1)
    assert registry.lookup(subject, record(("z", "int"), doc=subject)) is None
    assert subject in registry.subjects()


def test_one_text_has_one_id_under_every_subject(registry: SchemaRegistry, subject: str) -> None:
    text, other = record(A, doc=subject), subject.replace("contract", "other")
    first = registry.register(subject, text)
    assert registry.register(other, text) == first
    assert registry.register(subject, text) == first
    assert registry.versions(subject) == [1]
    assert registry.register(subject, record(A, OPTIONAL, doc=subject)) != first
    assert registry.register(subject, text) == first, "an earlier version keeps its id"
    assert registry.versions(subject) == [1, 2]


def test_the_places_of_a_schema_are_found_by_its_id(registry: SchemaRegistry, subject: str) -> None:
    text, other = record(A, doc=subject), subject.replace("contract", "other")
    schema_id = registry.register(subject, text)
    registry.register(other, record(A, OPTIONAL, doc=subject))
    registry.register(other, text)
    assert registry.places(schema_id) == [(subject, 1), (other, 2)]
    with pytest.raises(SchemaNotFoundError, match="does not have this schema id"):
        registry.places(2_000_000_001)


def test_a_verdict_is_the_same_offline_and_live(registry: SchemaRegistry, subject: str) -> None:
    text = record(A, ("qty", "int"), doc=subject)
    assert verdict(registry, subject, text, live=True).status == "new subject"
    registry.register(subject, text)
    registry.set_compatibility_level("BACKWARD", subject=subject)
    assert verdict(registry, subject, text, live=True).status == "registered"
    refused = verdict(registry, subject, record(A, ("qty", "string"), doc=subject), live=True)
    assert (refused.status, refused.own, refused.live) == ("incompatible", False, False)
    assert [(row.path, row.problem) for row in refused.fields if row.problem] == [
        ("qty", "changed from int to string")
    ]
    assert verdict(registry, subject, record(A, doc=subject), live=True).levels == (
        "NONE", "BACKWARD", "BACKWARD_TRANSITIVE"
    )  # fmt: skip


def test_what_is_not_there_is_not_found(registry: SchemaRegistry, subject: str) -> None:
    with pytest.raises(
        SchemaNotFoundError, match=r"schema_id=2000000001: The registry does not have this schema id"
    ):
        registry.schema_by_id(2_000_000_001)
    for ask in (registry.latest, registry.versions, lambda name: registry.schema_by_version(name, 1)):
        with pytest.raises(
            SchemaNotFoundError, match=f"subject={subject}: The registry does not have this subject"
        ):
            ask(subject)
    assert registry.lookup(subject, record(A)) is None
    assert subject not in registry.subjects()
    registry.register(subject, record(A, doc=subject))
    with pytest.raises(SchemaNotFoundError, match=f"subject={subject}: The subject has no version 9"):
        registry.schema_by_version(subject, 9)


def test_levels_are_kept_per_subject(registry: SchemaRegistry, subject: str) -> None:
    registry.register(subject, record(A, doc=subject))
    assert registry.compatibility_level(subject) == registry.compatibility_level()
    assert registry.compatibility_level("no-such-" + subject) == registry.compatibility_level()
    levels: tuple[CompatibilityLevel, ...] = ("FULL_TRANSITIVE", "FORWARD", "BACKWARD")
    for level in levels:
        registry.set_compatibility_level(level, subject=subject)
        assert registry.compatibility_level(subject) == level


def test_an_incompatible_schema_is_refused_by_field(registry: SchemaRegistry, subject: str) -> None:
    registry.register(subject, record(A, ("qty", "int"), doc=subject))
    registry.set_compatibility_level("BACKWARD", subject=subject)
    with pytest.raises(IncompatibleSchemaError) as caught:
        registry.register(subject, record(A, ("qty", "string"), ("c", "long"), doc=subject))
    error = caught.value
    assert error.context["subject"] == subject
    assert error.context["column"] == "qty"
    assert (
        "The schema registry refuses the schema under BACKWARD compatibility: field 'qty' changed from int "
        "to string; field 'c' was added without a default"
    ) in str(error)
    assert registry.versions(subject) == [1]


def test_transitive_levels_look_at_every_version(registry: SchemaRegistry, subject: str) -> None:
    registry.register(subject, record(A, ("b", "string"), doc=subject))
    registry.register(subject, record(A, doc=subject))
    third = record(A, {"name": "b", "type": "int", "default": 0}, doc=subject)
    registry.set_compatibility_level("BACKWARD_TRANSITIVE", subject=subject)
    assert not registry.check_compatibility(subject, third).compatible
    with pytest.raises(IncompatibleSchemaError, match="field 'b' changed from string to int"):
        registry.register(subject, third)
    registry.set_compatibility_level("BACKWARD", subject=subject)
    assert registry.check_compatibility(subject, third).compatible
    registry.register(subject, third)
    assert registry.versions(subject) == [1, 2, 3]


def test_a_new_subject_takes_any_schema(registry: SchemaRegistry, subject: str) -> None:
    result = registry.check_compatibility(subject, record(A))
    assert (result.compatible, result.messages) == (True, ())


def test_what_is_no_avro_schema_is_refused_for_good(registry: SchemaRegistry, subject: str) -> None:
    for text in ("no json", '{"type": "nope"}'):
        with pytest.raises(RegistryError) as caught:
            registry.register(subject, text)
        assert type(caught.value) is RegistryError
        assert caught.value.remedy == "fix"


DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}
WIDER = {**DECIMAL, "precision": 12}
SCHEMAS = {
    "int": record(A),
    "long": record(("a", "long")),
    "double": record(("a", "double")),
    "string": record(("a", "string")),
    "bytes": record(("a", "bytes")),
    "decimal": record(("a", DECIMAL)),
    "wider decimal": record(("a", WIDER)),
    "null first": record(("a", ["null", "int"])),
    "null last": record(("a", ["int", "null"])),
    "and required": record(A, ("b", "string")),
    "and optional": record(A, OPTIONAL),
    "renamed": record(A, name="u"),
    "other namespace": record(A).replace("default.test", "default.other"),
    "renamed with alias": json.dumps({**json.loads(record(A, name="u")), "aliases": ["t"]}),
    "before": record(A, BEFORE),
    "before wider": record(A, json.loads(json.dumps(BEFORE).replace('"int"', '"long"'))),
}


@pytest.mark.parametrize("level", ["NONE", "BACKWARD", "FORWARD", "FULL"])
def test_registries_agree_on_what_may_follow_what(
    registry: SchemaRegistry, subject: str, level: CompatibilityLevel
) -> None:
    """Held to the real server: whatever it says for a pair, our own rules say too, with words."""
    for old_name, old in SCHEMAS.items():
        here = f"{old_name.replace(' ', '-')}-{subject}"
        registry.register(here, old)
        registry.set_compatibility_level(level, subject=here)
        twin = MemorySchemaRegistry(compatibility=level)
        twin.register(here, old)
        for new_name, new in SCHEMAS.items():
            result = registry.check_compatibility(here, new)
            assert result.compatible == twin.check_compatibility(here, new).compatible, (old_name, new_name)
            assert result.compatible == (not result.messages), (old_name, new_name)


def test_preloaded_schemas_are_known_by_id_and_keep_it() -> None:
    text = record(A)
    registry = MemorySchemaRegistry({70_000: text})
    assert registry.schema_by_id(70_000) == text
    assert registry.subjects() == []
    assert registry.register("s-value", json.dumps(json.loads(text), indent=1)) == 70_000
    assert registry.register("s-value", record(A, OPTIONAL)) == 70_001
