"""Options of a changefeed beyond the vectors: where the two producers differ, and how values are read."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tidesink.codecs.base import Producer
from tidesink.config.changefeed import pipeline_draft, read_changefeed, read_toml
from tidesink.errors import ConfigError

CANAL = "kafka://k:9092/t?protocol=canal-json"
AVRO = "kafka://k:9092/t?protocol=avro&schema-registry=http://r:8081"
GLUE = "[sink.kafka-config.glue-schema-registry-config]\nregion='r'\nregistry-name='n'"
CORRECT = "integrity-check-level='correctness'\n"


class Case(NamedTuple):
    """A changefeed of which no config can be made, and the reason."""

    uri: str
    toml: str
    says: str
    producer: Producer = "classic"


@pytest.mark.parametrize(
    "case",
    [
        Case(f"{CANAL}&enable-tidb-extension=yes", "", "enable-tidb-extension: 'yes' .*use true or false"),
        Case(f"{CANAL}&enable-tidb-extension=tRUE", "", "use true or false"),
        Case(CANAL, "[sink]\ncontent-compatible='true'", "sink.content-compatible: give true or false"),
        Case(CANAL, "[sink]\nschema-registry=1", "sink.schema-registry: give a text"),
        Case(f"{CANAL}&output-row-key=maybe", "", "true or false", "new"),
        Case("kafka://k:9092/t?protocol=avro", "", "add schema-registry="),
        Case("kafka://k:9092/t?protocol=avro", GLUE, r"not with AWS Glue"),
        Case("kafka://k:9092/t", "", "protocol: is missing"),
        Case("kafka://k:9092/t?protocol=debezum", "", "did you mean debezium-"),
        Case(AVRO, "[sink]\ndispatchers=[{matcher=['a.*'],topic='{table}'}]", "one subject"),
        Case(AVRO, "[sink]\ndispatchers=[{matcher=['a']}]", r"dispatchers\[0\]: matcher 'a': .*correct"),
        Case(
            "kafka://k/t?protocol=debezium-avro&schema-registry=http://r",
            "[sink]\ndispatchers=[{matcher=['a.*'],topic='{schema}'}]",
            "one subject",
            "new",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_way_out(case: Case) -> None:
    with pytest.raises(ConfigError, match=case.says):
        pipeline_draft(read_changefeed(case.uri, read_toml(case.toml), producer=case.producer))


def test_options_that_only_the_new_architecture_has() -> None:
    uri = f"{AVRO}&avro-include-before-value=true&enable-tidb-extension=1"
    new = read_changefeed(uri, producer="new").options
    assert (new["avro-include-before-value"], new["output-row-key"]) == (True, False)
    assert "avro-include-before-value" not in read_changefeed(uri).options
    toml = read_toml("[sink.kafka-config.codec-config]\noutput-row-key=true")
    assert read_changefeed(CANAL, toml, producer="new").options["output-row-key"]


def test_watermarks_of_debezium_avro_are_for_the_new_architecture() -> None:
    uri = "kafka://k/t?protocol=debezium-avro&schema-registry=http://r&enable-tidb-extension=1&avro-enable-watermark=1"
    assert read_changefeed(uri, producer="new").options["avro-enable-watermark"]
    assert not read_changefeed(uri).options["avro-enable-watermark"]


@pytest.mark.parametrize("producer", ["classic", "new"])
def test_each_producer_has_the_checksums_in_a_section_of_its_own(producer: Producer) -> None:
    for section, of in (("integrity", "classic"), ("sink.integrity", "new")):
        found = read_changefeed(AVRO, read_toml(f"[{section}]\n{CORRECT}"), producer=producer)
        assert found.options["row-checksum"] is (of == producer)


def test_a_value_of_nothing_in_the_uri_does_not_undo_the_files() -> None:
    toml = "[sink.kafka-config.codec-config]\nenable-tidb-extension=true\navro-decimal-handling-mode='string'"
    uri = f"{AVRO}&enable-tidb-extension=false&avro-decimal-handling-mode="
    options = read_changefeed(uri, read_toml(toml)).options
    assert (options["enable-tidb-extension"], options["avro-decimal-handling-mode"]) == (True, "string")
    assert read_changefeed(uri).options["avro-decimal-handling-mode"] == "precise"


def test_the_first_of_two_values_counts_and_unknown_parameters_do_not() -> None:
    uri = f"{CANAL}&content-compatible=true&content-compatible=false&nonsense=1"
    assert read_changefeed(uri).options["content-compatible"]


@pytest.mark.parametrize(
    ("more", "protocol"),
    [
        ("", None),
        ("&enable-tls=true", "SSL"),
        ("&ca=a&cert=b&key=c", "SSL"),
        ("&enable-tls=false&ca=a&cert=b&key=c", None),
        ("&ca=a", None),
        ("&sasl-mechanism=plain&sasl-user=u", "SASL_PLAINTEXT"),
    ],
)
def test_tls_follows_from_its_files(more: str, protocol: str | None) -> None:
    draft = pipeline_draft(read_changefeed(CANAL + more))
    assert draft.source.get("kafka", {}).get("security.protocol") == protocol


def test_a_mistyped_member_of_a_dispatcher_is_told() -> None:
    feed = read_changefeed(CANAL, read_toml("[sink]\ndispatchers=[{matcher=['a.*'],topics='x'}]"))
    assert "topics is unknown (did you mean topic?)" in feed.warnings[0]


def test_a_changefeed_shows_no_secret() -> None:
    feed = read_changefeed(f"{CANAL}&sasl-password=hunter2&schema-registry=http://u:hunter2@r")
    assert "hunter2" not in repr(feed)


def test_a_section_that_is_none_is_told() -> None:
    for toml in ("sink=1", "[sink]\nkafka-config=1", "[sink.kafka-config]\nlarge-message-handle=1"):
        with pytest.raises(ConfigError, match="is a section"):
            read_changefeed(CANAL, read_toml(toml))
