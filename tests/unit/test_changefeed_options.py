"""Options of a changefeed beyond the vectors: where the two producers differ, and how values are read."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tidesink.codecs.base import Producer
from tidesink.config.changefeed import ChangefeedRefusedError, read_changefeed, read_toml
from tidesink.config.changefeed import options as go_text
from tidesink.errors import ConfigError

CANAL = "kafka://k:9092/t?protocol=canal-json"
AVRO = "kafka://k:9092/t?protocol=avro&schema-registry=http://r:8081"
LARGE = "[sink.kafka-config.large-message-handle]\nlarge-message-handle-option='handle-key-only'\n"
CORRECT = "integrity-check-level='correctness'\n"


class Case(NamedTuple):
    """A changefeed, and what each producer says of it: None where it is taken."""

    uri: str
    toml: str
    classic: str | None
    new: str | None


# From TiCDC's sources (tiflow c7b2588 and ticdc b813e76).
BOTH = (
    Case(f"{CANAL}&required-acks=2", "", "required-acks", "required-acks"),
    Case(f"{CANAL}&kafka-client-id=a%20b", "", "kafka-client-id", "kafka-client-id"),
    Case(f"{CANAL}&dial-timeout=5", "", "is no duration", "is no duration"),
    Case(f"{CANAL}&transaction-atomicity=table", "", "transaction-atomicity", "transaction-atomicity"),
    Case(f"{CANAL}&enable-tidb-extension=yes", "", "use true or false", "use true or false"),
    Case(f"{CANAL}&replication-factor=40000", "", "below 32768", "below 32768"),
    Case(f"{CANAL}&enable-tls=false&ca=a&cert=b&key=c", "", "enable-tls", "enable-tls"),
    Case("kafka://k:9092/t?protocol=avro", "", "avro needs it", "avro needs it"),
    Case(f"{AVRO}&avro-decimal-handling-mode=String", "", "precise or string", "precise or string"),
    Case(f"{AVRO}&avro-bigint-unsigned-handling-mode=x", "", "long or string", "long or string"),
    Case("kafka://k:9092/t", "", "protocol: is missing", "protocol: is missing"),
    Case("kafka://k:9092/t?protocol=maxwel", "", "did you mean maxwell?", "did you mean maxwell?"),
    Case(CANAL, "[sink]\ndispatchers=[{matcher=['*.*'],partition='ts',dispatcher='ts'}]", "older", "older"),
    Case(CANAL, LARGE, "in the sink URI", "in the sink URI"),
    Case(CANAL, "[sink.kafka-config.codec-config]\nenable-tidb-extension=true\n" + LARGE, "in the", "in the"),
    Case(f"{CANAL}&enable-tidb-extension=true", LARGE, None, None),
    Case("kafka://k/t?protocol=simple", LARGE, None, None),
    Case(
        AVRO,
        "[sink]\nschema-registry='http://r'\n[sink.kafka-config.glue-schema-registry-config]\nregion='r'",
        "registry-name",
        "registry-name",
    ),
    Case(
        "kafka://k/t?protocol=avro",
        "[sink.kafka-config.glue-schema-registry-config]\nregion='r'\nregistry-name='n'\naccess-key='a'",
        "secret-access-key",
        "secret-access-key",
    ),
    Case(
        "kafka://k/t?protocol=avro",
        "[sink.kafka-config.glue-schema-registry-config]\nregion='r'\nregistry-name='n'",
        None,
        None,
    ),
    Case(AVRO, "[sink]\ndispatchers=[{matcher=['a.*'],topic='{table}'}]", "one subject", "one subject"),
    Case(AVRO, "[sink]\ndispatchers=[{matcher=['a.*'],topic='fixed'}]", None, None),
    Case(CANAL, "[sink.kafka-config]\nsasl-oauth-client-id='i'", "OAUTHBEARER alone", "OAUTHBEARER alone"),
    Case(
        f"{CANAL}&sasl-mechanism=OAUTHBEARER",
        "[sink.kafka-config]\nsasl-oauth-client-id='i'\nsasl-oauth-token-url='u'\n"
        "sasl-oauth-client-secret='not base64!'",
        "is not base64",
        "is not base64",
    ),
    Case(
        f"{CANAL}&sasl-mechanism=oauthbearer",
        "[sink.kafka-config]\nsasl-oauth-client-id='i'\nsasl-oauth-token-url='u'\n"
        "sasl-oauth-client-secret='c2VjcmV0'",
        None,
        None,
    ),
    Case(f"{CANAL}&sasl-gssapi-auth-type=x", "", "USER or KEYTAB", "USER or KEYTAB"),
)
DIFFERENT = (
    Case(f"{CANAL}&replication-factor=0", "", None, "replication-factor"),
    Case(f"{CANAL}&dial-timeout=0s", "", None, "not above 0"),
    Case("kafka://k/t?protocol=debezium-avro&schema-registry=http://r", "", "did you mean debezium?", None),
    Case("kafka://k/t?protocol=debezium-avro", "", "unknown", "debezium-avro needs it"),
    Case("kafka://k/t?protocol=debezium&schema-registry=http://r", "", None, '"debezium-avro"'),
    Case("kafka://k/t?protocol=debezium&debezium-include-start-ts=true", "", None, None),
    Case(f"{CANAL}&debezium-include-start-ts=true", "", None, "for protocol debezium alone"),
    Case(f"{CANAL}&output-row-key=maybe", "", None, "true or false"),
    Case("kafka://k/t?protocol=canal", "", None, "no encoder for canal"),
    Case("kafka://k/t?protocol=maxwell", "", None, "no encoder"),
    Case(AVRO, "force-replicate=true", "needs a key in every table", None),
    Case(AVRO, "[sink]\nforce-replicate=true", None, "needs a key in every table"),
    Case(AVRO, "[integrity]\n" + CORRECT, "three other options", None),
    Case(AVRO, "[sink.integrity]\n" + CORRECT, None, "three other options"),
    Case(
        CANAL,
        "[[sink.column-selectors]]\nmatcher=['*.*']\n[integrity]\n" + CORRECT,
        "column-selectors",
        None,
    ),
    Case(f"{CANAL}&enable-tidb-extension=t", "force-replicate=true\n" + LARGE, "excludes large", None),
    Case(f"{CANAL}&enable-tidb-extension=t", "[sink]\nforce-replicate=true\n" + LARGE, None, None),
    Case(
        f"{CANAL}&enable-tidb-extension=t",
        LARGE.replace("handle-key-only", "foo"),
        None,
        "use none, claim-check, handle-key-only",
    ),
    Case(
        "kafka://k/t?protocol=debezium-avro&schema-registry=http://r",
        "[sink]\ndispatchers=[{matcher=['a.*'],topic='{schema}'}]",
        "unknown",
        "one subject",
    ),
)


@pytest.mark.parametrize("case", [*BOTH, *DIFFERENT])
@pytest.mark.parametrize("producer", ["classic", "new"])
def test_each_producer_takes_or_refuses(case: Case, producer: Producer) -> None:
    expected = case.classic if producer == "classic" else case.new
    settings = read_toml(case.toml)
    if expected is None:
        assert read_changefeed(case.uri, settings, producer=producer).producer == producer
        return
    with pytest.raises(ChangefeedRefusedError) as refused:
        read_changefeed(case.uri, settings, producer=producer)
    assert expected in refused.value.message


def test_the_table_of_differences_has_no_case_where_both_agree() -> None:
    reported = [case for case in DIFFERENT if case.classic != case.new]
    assert len(reported) >= len(DIFFERENT) - 2


def test_options_that_only_the_new_architecture_has() -> None:
    uri = f"{AVRO}&avro-include-before-value=true&enable-tidb-extension=1"
    new = read_changefeed(uri, producer="new").options
    assert (new["avro-include-before-value"], new["output-row-key"]) == (True, False)
    assert "avro-include-before-value" not in read_changefeed(uri).options
    keyed = read_changefeed(
        CANAL, read_toml("[sink.kafka-config.codec-config]\noutput-row-key=true"), producer="new"
    )
    assert keyed.options["output-row-key"]


def test_watermarks_of_debezium_avro_are_for_the_new_architecture() -> None:
    uri = "kafka://k/t?protocol=debezium-avro&schema-registry=http://r&enable-tidb-extension=1&avro-enable-watermark=1"
    assert read_changefeed(uri, producer="new").options["avro-enable-watermark"]


def test_every_reason_is_told_in_the_order_of_ticdcs_stages() -> None:
    uri = "kafka://k/?protocol=x&partition-num=0&max-batch-size=0"
    with pytest.raises(ChangefeedRefusedError) as refused:
        read_changefeed(uri, read_toml("[sink]\ndispatchers=[{matcher=['a']}]"))
    stages = [one.stage for one in refused.value.refusals]
    assert stages == ["replica-config", "topic", "kafka-options", "encoder-config", "event-router"]


def test_a_value_of_nothing_in_the_uri_does_not_undo_the_files() -> None:
    codec = "[sink.kafka-config.codec-config]\nenable-tidb-extension=true"
    toml = f"[sink.kafka-config]\nmax-message-bytes=5\n{codec}"
    options = read_changefeed(
        f"{CANAL}&enable-tidb-extension=false&max-message-bytes=", read_toml(toml)
    ).options
    assert (options["enable-tidb-extension"], options["max-message-bytes"]) == (True, 5)
    with pytest.raises(ChangefeedRefusedError, match="max-message-bytes: 0"):
        read_changefeed(f"{CANAL}&max-message-bytes=")


def test_the_first_of_two_values_counts_and_unknown_parameters_do_not() -> None:
    options = read_changefeed(f"{CANAL}&max-message-bytes=7&max-message-bytes=8&nonsense=1").options
    assert options["max-message-bytes"] == 7


def test_a_mistyped_member_of_a_dispatcher_is_told() -> None:
    feed = read_changefeed(CANAL, read_toml("[sink]\ndispatchers=[{matcher=['a.*'],topics='x'}]"))
    assert "topics is unknown (did you mean topic?)" in feed.warnings[0]


def test_a_changefeed_shows_no_secret() -> None:
    feed = read_changefeed(f"{CANAL}&sasl-password=hunter2&schema-registry=http://u:hunter2@r")
    assert "hunter2" not in repr(feed)
    assert "hunter2" not in repr(feed.given)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("10s", "10s"),
        ("2m", "2m0s"),
        ("100ms", "100ms"),
        ("1h2m3.5s", "1h2m3.5s"),
        ("90s", "1m30s"),
        ("0", "0s"),
        ("1.5us", "1.5µs"),
        ("20ns", "20ns"),
        ("-1s", "-1s"),
        ("100h", "100h0m0s"),
    ],
)
def test_durations_are_shown_as_go_does(text: str, shown: str) -> None:
    assert go_text.shown_duration(go_text.duration(text)) == shown


@pytest.mark.parametrize("text", ["10", "s", "1 s", "1d", "--1s", "+-1s", ""])
def test_what_go_takes_for_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="500ms"):
        go_text.duration(text)


@pytest.mark.parametrize("text", ["tRUE", "yes", "on", " true"])
def test_what_go_takes_for_no_boolean(text: str) -> None:
    with pytest.raises(ValueError, match="true or false"):
        go_text.boolean(text)


def test_a_section_that_is_none_is_told() -> None:
    for toml in ("sink=1", "[sink]\nkafka-config=1", "[sink.kafka-config]\nlarge-message-handle=1"):
        with pytest.raises(ConfigError, match="is a section"):
            read_changefeed(CANAL, read_toml(toml))


KAFKA = "sink.kafka-config"
UNKNOWN = "integrity-check-level='x'"


@pytest.mark.parametrize(
    ("sink_uri", "toml", "producer", "field"),
    [
        (f"{CANAL}&required-acks=2", "", "classic", "sink-uri: required-acks"),
        (CANAL, f"[{KAFKA}]\nrequired-acks=2", "classic", f"changefeed: {KAFKA}.required-acks"),
        (CANAL, "[sink.kafka-config]\ndial-timeout='x'", "new", "changefeed: sink.kafka-config.dial-timeout"),
        ("kafka://k/t", "[sink]\nprotocol='maxwel'", "classic", "changefeed: sink.protocol"),
        ("kafka://k/t", "", "classic", "sink-uri: protocol"),
        (
            f"{CANAL}&ca=a",
            "[sink.kafka-config]\nkey='k'",
            "classic",
            "sink-uri: ca, sink-uri: cert, changefeed: sink.kafka-config.key",
        ),
        (CANAL, f"[integrity]\n{UNKNOWN}", "classic", "changefeed: integrity.integrity-check-level"),
        (CANAL, f"[sink.integrity]\n{UNKNOWN}", "new", "changefeed: sink.integrity.integrity-check-level"),
    ],
)
def test_a_refusal_says_where_the_option_stands(
    sink_uri: str, toml: str, producer: Producer, field: str
) -> None:
    with pytest.raises(ChangefeedRefusedError) as refused:
        read_changefeed(sink_uri, read_toml(toml), producer=producer)
    assert [one.field for one in refused.value.refusals] == [field]
