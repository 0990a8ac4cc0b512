"""Everything wrong in a config is told at once: field, reason, remedy."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.config.refusals import CASES
from tests.unit.config.samples import FLAT_AVRO, changed, right, wrong
from tidesink.config import check_config, load_config
from tidesink.errors import ConfigError


def test_everything_wrong_is_told_at_once() -> None:
    found = wrong(
        changed(
            FLAT_AVRO,
            pipeline="sh op",
            source__brokers="nowhere",
            source__avro_decimal_handling_mode="float",
            source__protocl="avro",
            source__topics="{schema}_x",
            source__content_compatible=True,
            batch__max_records=0,
            target__type="deltalake",
            retry__for="soon",
        )
    )
    assert set(found) == {
        "pipeline",
        "source.brokers[0]",
        "source.avro-decimal-handling-mode",
        "source.protocl",
        "source.topics",
        "source.content-compatible",
        "batch.max-records",
        "target.type",
        "retry.for",
    }
    assert all(problem.reason and problem.remedy for problem in found.values())


@pytest.mark.parametrize(
    ("data", "field", "reason", "remedy"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_each_refusal_names_field_reason_and_remedy(
    data: dict[str, Any], field: str, reason: str, remedy: str
) -> None:
    problem = wrong(data)[field]
    assert reason in problem.reason
    assert remedy in problem.remedy


_BILLION = "a0: &a0 [1, 1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 20)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pipeline: [", "is not YAML in line 1"),
        ("pipeline: a\npipeline: b", "pipeline is given twice"),
        ("", "is not a section of settings"),
        ("- a", "is not a section of settings"),
        ("a: \x07b", "character 4 has the code 7, which is not allowed"),
        ("a: 2020-13-45", "line 1, column 4: the value looks like a date or a number"),
        ("a: !!timestamp 3", "looks like a date or a number but is not valid: put it in quotes"),
        ("a: &a [*a]", "an anchor is used inside itself"),
        ("a: &a\n  <<: *a", "an anchor is used inside itself"),
        (_BILLION, "its aliases expand to more than 200,000 values"),
        ("[" * 5000, "nested too deeply"),
        ("password: *s3cr3t", "a text that begins with \\* must be in quotes"),
        ("password: !s3cr3t x", "a text that begins with ! must be in quotes"),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as refused:
        load_config(file)
    assert "s3cr3t" not in str(refused.value)


_PLACES_OF_SECRETS: dict[str, Any] = {
    "source": {"protocol": "flat-avro", "schema-registry": {"urls": "http://a:s3cr3t@b"}, "kafka": "s3cr3t"},
    "target": {"type": "postgres", "url": "postgresql://a:s3cr3t@b/c", "user": "a"},
    "state": "nosuch://a:s3cr3t@b",
    "spark": {"conf": ["s3cr3t"]},
}


@pytest.mark.parametrize("password", [123454321, True, "a${s3cr3t}b", ["s3cr3t"], date(2020, 1, 2), 1.5])
def test_no_value_is_shown_where_a_secret_may_stand(password: Any) -> None:
    """Whatever YAML takes it for: places of secrets come from the types of the settings."""
    target = {**_PLACES_OF_SECRETS["target"], "password": password}
    found = wrong({"pipeline": "p", **_PLACES_OF_SECRETS, "target": target})
    assert {"source.schema-registry.urls[0]", "source.kafka", "target.url", "spark.conf"} <= set(found)
    assert {"target.password", "state"} <= set(found)
    shown = "\n".join(map(str, found.values()))
    for secret in ("s3cr3t", "123454321", "True", "2020", "1.5"):
        assert secret not in shown


def test_a_value_is_shown_where_no_secret_can_stand() -> None:
    found = wrong(changed(FLAT_AVRO, tables="s", source__protocol="avrro"))
    assert "'s'" in found["tables"].reason
    assert "'avrro'" in found["source.protocol"].reason


def test_kafkas_properties_are_told_with_what_is_wrong_elsewhere() -> None:
    """A wrong protocol leaves too little for the checks between settings; these need nothing else."""
    kafka = {"securty.protocol": "SSL", "sasl.mechanism": "FOO"}
    found = wrong(changed(FLAT_AVRO, source__protocol="avrro", source__kafka=kafka))
    assert set(found) == {
        "source.protocol",
        "source.kafka.securty.protocol",
        "source.kafka.sasl.mechanism",
    }
    assert "did you mean security.protocol?" in found["source.kafka.securty.protocol"].reason


def test_a_long_list_of_names_is_cut_to_the_nearest() -> None:
    found = wrong(changed(FLAT_AVRO, source__kafka={"ssl.ca.file": "x"}, source__content_compatibel=True))
    assert found["source.content-compatibel"].remedy.startswith("use one of content-compatible, ")
    assert found["source.kafka.ssl.ca.file"].remedy.startswith("use one of ssl.ca.pem, ssl.ca.location, ")
    for problem in found.values():
        assert problem.remedy.count(",") == 4
        assert ", …: docs/configuration.md lists all " in problem.remedy


def test_no_words_of_the_library_are_shown() -> None:
    """Its own begin with ``Value error,`` and name Python's types."""
    for name, data, *_ in CASES:
        for problem in wrong(data).values():
            assert "Value error" not in f"{problem}", name
            assert "Input should" not in f"{problem}", name


def test_a_duration_of_nothing_needs_no_unit() -> None:
    assert right(changed(FLAT_AVRO, retry__for=0)).retry.for_ == 0
    assert (
        "number greater than 0"
        in wrong(changed(FLAT_AVRO, batch__poll_interval=0))["batch.poll-interval"].remedy
    )


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"No such file or directory\. tidesink init writes one"):
        check_config(tmp_path / "none.yaml")


def test_the_message_lists_every_problem(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump(changed(FLAT_AVRO, pipeline="", batch__max_records="x")))
    with pytest.raises(ConfigError) as raised:
        load_config(file)
    assert "2 settings are wrong in t.yaml" in raised.value.message
    assert "batch.max-records: 'x' is not a valid number" in raised.value.message
