"""The config file: what it gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.config.samples import CANAL_JSON, FLAT_AVRO, changed, right, wrong
from tidesink.codecs.options import FlatAvroOptions
from tidesink.config import load_config, parse_config
from tidesink.config.models import topic_tables
from tidesink.config.targets import DeltaSettings
from tidesink.errors import ConfigError
from tidesink.events import TableId
from tidesink.schema_registry import MemorySchemaRegistry


def test_defaults_are_the_documented_ones() -> None:
    config = right(FLAT_AVRO)
    table = config.table_config(TableId("shop", "orders"))
    assert (table.sequence_by, table.deletes, table.zero_date, table.bad_record) == (
        "kafka",
        "hard",
        "null",
        "pause",
    )
    assert (config.batch.max_records, config.batch.max_bytes, config.batch.max_tables) == (
        1_000_000,
        2**28,
        None,
    )
    assert config.retry.for_ == 300
    assert config.state == "/base/.tidesink/state.db"
    assert isinstance(config.target, DeltaSettings)
    assert config.target.path == "/base/lake"
    assert config.source.time_zone == "UTC"


def test_a_config_cannot_be_changed() -> None:
    config = right(FLAT_AVRO)
    with pytest.raises(ValueError, match="frozen"):
        config.pipeline = "other"


@pytest.mark.parametrize(
    ("name", "protocol"), [("avro", "flat-avro"), ("AVRO", "flat-avro"), ("Flat-Avro", "flat-avro")]
)
def test_protocol_names_are_ticdcs_in_any_case(name: str, protocol: str) -> None:
    assert right(changed(FLAT_AVRO, source__protocol=name)).source.protocol == protocol


def test_codec_options_carry_ticdcs_values() -> None:
    config = right(
        changed(
            FLAT_AVRO,
            source__enable_tidb_extension="true",
            source__avro_decimal_handling_mode="string",
            source__avro_bigint_unsigned_handling_mode="string",
            source__time_zone="Asia/Shanghai",
        )
    )
    options = config.source.options_of(FlatAvroOptions)
    assert options.enable_tidb_extension is True
    assert options.avro_decimal_handling_mode == "string"
    assert options.avro_bigint_unsigned_handling_mode == "string"
    assert options.time_zone == "Asia/Shanghai"


RAW: dict[str, Any] = {"source__output_raw_change_event": True, "source__enable_tidb_extension": True}
IN_ORDER = {"sequence_by": "source"}


@pytest.mark.parametrize("base", [CANAL_JSON, changed(FLAT_AVRO, source__avro_include_before_value=True)])
@pytest.mark.parametrize(
    ("defaults", "tables", "passes"),
    [
        ({}, [], False),
        (IN_ORDER, [], True),
        (IN_ORDER, [{"match": "shop.*", "sequence_by": "kafka"}], False),
        ({"mode": "history"}, [], True),
        ({"mode": "append"}, [{"name": "shop.orders", "mode": "upsert"}], False),
    ],
)
def test_raw_change_events_want_the_order_of_the_source(
    base: dict[str, Any], defaults: dict[str, Any], tables: list[Any], passes: bool
) -> None:
    data = changed(base, **RAW, defaults=defaults, tables=tables)
    if passes:
        right(data)
    else:
        assert "rows would be lost" in wrong(data)["source.output-raw-change-event"].reason


def test_zero_date_null_may_be_yamls_own_null(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(
        yaml.safe_dump(FLAT_AVRO) + "defaults: {zero-date: text}\ntables: [{match: 'a.*', zero-date: null}]"
    )
    config = load_config(file)
    assert config.table_config(TableId("a", "b")).zero_date == "null"
    assert config.table_config(TableId("c", "b")).zero_date == "text"


def test_secrets_never_show(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0k3n\n")
    data = changed(
        FLAT_AVRO,
        source__schema_registry={"urls": "http://r:1", "auth": {"token": "${file:token}"}},
        source__kafka={
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "u",
            "sasl.password": '${env:SECRET}"\\',
        },
        spark__conf={"spark.hadoop.fs.s3a.secret.key": "${env:SECRET}"},
    )
    config = right(data, tmp_path)
    shown = f"{config!r} {config} {config.model_dump()} {config.model_dump_json()}"
    assert "s3cr3t" not in shown
    assert "t0k3n" not in shown
    assert config.source.schema_registry is not None
    assert config.source.schema_registry.auth is not None
    assert config.source.schema_registry.auth.signing().header() == "Bearer t0k3n"
    assert config.source.confluent_properties()["sasl.password"] == 's3cr3t"\\'
    assert "s3cr3t" not in repr(config.source.confluent_properties())
    assert config.spark.conf_values() == {"spark.hadoop.fs.s3a.secret.key": "s3cr3t"}


def test_a_wrong_secret_is_reported_without_its_value() -> None:
    found = wrong(
        changed(
            FLAT_AVRO,
            source__time_zone="${env:SECRET}",
            source__kafka={"sasl.mechanism": "s3cr3t", "security.protocol": "SASL_SSL"},
            source__schema_registry={"url": "http://u:s3cr3t@r:1"},
        )
    )
    assert {"source.time-zone", "source.kafka.sasl.mechanism", "source.schema-registry.urls[0]"} <= set(found)
    assert "s3cr3t" not in " ".join(map(str, found.values()))


def test_tls_files_are_read_from_beside_the_config(tmp_path: Path) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text(f"-- {name} --")
    config = right(
        changed(
            FLAT_AVRO,
            source__kafka={
                "security.protocol": "SSL",
                "ssl.ca.location": "ca.pem",
                "ssl.certificate.location": "cert.pem",
                "ssl.key.location": "key.pem",
                "ssl.endpoint.identification.algorithm": "none",
            },
        ),
        tmp_path,
    )
    confluent = config.source.confluent_properties()
    assert confluent["ssl.ca.location"] == str(tmp_path / "ca.pem")
    assert confluent["ssl.endpoint.identification.algorithm"] == "none"
    assert (confluent["ssl.certificate.location"], confluent["ssl.key.location"]) == (
        str(tmp_path / "cert.pem"),
        str(tmp_path / "key.pem"),
    )


@pytest.mark.parametrize(
    "properties",
    [
        {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "c",
            "sasl.oauthbearer.client.secret": "s",
            "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
        },
        {"oauth_cb": "my_signer:token", "sasl.oauthbearer.config": "eu-west-1"},
    ],
    ids=["a token endpoint", "a named function"],
)
def test_tokens_for_kafka(properties: dict[str, str]) -> None:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER", **properties}
    config = right(changed(FLAT_AVRO, source__kafka=given), Path())
    assert given.items() <= config.source.confluent_properties().items()


def test_names_of_the_java_client_are_understood_where_they_mean_the_same(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
    given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.jaas.config": f'{plain} required username="u" password="${{env:SECRET}}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "ca.pem",
    }
    config = right(changed(FLAT_AVRO, source__kafka=given), tmp_path)
    found = config.source.confluent_properties()
    assert (found["sasl.username"], found["sasl.password"]) == ("u", "s3cr3t")
    assert found["ssl.ca.location"] == str(tmp_path / "ca.pem")
    assert "s3cr3t" not in f"{config!r} {found!r}"


def test_every_property_is_one_librdkafka_knows() -> None:
    from confluent_kafka import Consumer, KafkaException

    from tidesink.kafka_client import FILES, NAMES, TOKEN_CALLBACK

    for name in set(NAMES) - {TOKEN_CALLBACK, *FILES}:
        try:
            Consumer({"group.id": "g", name: "1"})
        except KafkaException as error:
            assert "No such configuration property" not in str(error), name  # noqa: PT017


def test_tables_take_their_own_settings_then_patterns_then_defaults() -> None:
    config = right(
        changed(
            FLAT_AVRO,
            defaults__deletes="soft",
            dead_letters={"errors.deadletterqueue.topic.name": "shop-dlq"},
            tables=[
                {"match": "shop.*", "bad-record": "dead-letter", "deletes": "hard"},
                {"name": "Shop.Orders", "keys": "a, b", "bad-record": "pause"},
            ],
        )
    )
    orders = config.table_config(TableId("shop", "orders"))
    assert (orders.keys, orders.bad_record, orders.deletes) == (("a", "b"), "pause", "hard")
    other = config.table_config(TableId("other", "t"))
    assert (other.keys, other.bad_record, other.deletes) == (None, "pause", "soft")


def test_a_definition_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "t.sql").write_text("CREATE TABLE t (id int)")
    config = right(changed(CANAL_JSON, tables=[{"name": "a.t", "definition": {"file": "t.sql"}}]), tmp_path)
    definition = config.table_config(TableId("a", "t")).definition
    assert definition is not None
    assert definition.sql == "CREATE TABLE t (id int)"
    found = wrong(changed(CANAL_JSON, tables=[{"name": "a.t", "definition": {"file": "no.sql"}}]), tmp_path)
    assert "cannot be read" in found["tables[0].definition"].remedy


def test_topics_and_their_tables() -> None:
    config = right(
        changed(FLAT_AVRO, tables=[{"name": "shop.order_items"}, {"name": "Big.One", "topic": "legacy"}])
    )
    assert config.table_of_topic("shop_orders") == TableId("shop", "orders")
    assert config.table_of_topic("shop_order_items") == TableId("shop", "order_items")
    assert config.table_of_topic("legacy") == TableId("Big", "One")
    assert config.table_of_topic("a_b_c") is None
    assert config.table_of_topic("a_b_c", record=TableId("a_b", "c")) == TableId("a_b", "c")
    assert config.topics_among(["legacy", "a_b", "__consumer_offsets", "plain"]) == ("a_b", "legacy")
    assert config.fixed_topics == ("legacy",)


def test_the_registry_tells_which_table_a_topic_means() -> None:
    registry = MemorySchemaRegistry()
    for topic, namespace, name in (("a_b_c", "default.a", "b_c"), ("x_y_z", "default.q", "r")):
        registry.register(
            f"{topic}-value", f'{{"type":"record","name":"{name}","namespace":"{namespace}","fields":[]}}'
        )
    table_of = topic_tables(right(FLAT_AVRO), registry)
    assert table_of("a_b_c") == TableId("a", "b_c")
    assert table_of("shop_orders") == TableId("shop", "orders")
    with pytest.raises(ConfigError, match="Several tables fit the topic's name"):
        table_of("x_y_z")
    with pytest.raises(ConfigError, match=r"topic: k_l_m"):
        table_of("k_l_m")


def test_canal_json_takes_tables_from_messages() -> None:
    config = right(CANAL_JSON)
    assert config.table_of_topic("app") is None
    assert config.topics_among(["app", "b"]) == ("app",)
    assert config.source.bootstrap_servers == "a:1,b:2"
    assert isinstance(config.target, DeltaSettings)
    assert config.target.path == "gs://bucket/lake"


def test_a_reference_to_nothing_counts_as_not_given() -> None:
    data = changed(
        FLAT_AVRO,
        source__schema_registry={
            "urls": "${env:URL}",
            "auth": {"username": "${env:EMPTY}", "password": "${env:EMPTY}"},
        },
        source__kafka={"security.protocol": "PLAINTEXT", "sasl.username": "${env:EMPTY}"},
    )
    config, problems = parse_config(data, base=Path(), environment={"URL": "http://r:1", "EMPTY": ""})
    assert problems == []
    assert config is not None
    assert config.source.schema_registry is not None
    assert config.source.schema_registry.auth is None
    assert list(config.source.kafka) == ["security.protocol"]


@pytest.mark.parametrize(
    ("state", "shown"),
    [
        ("postgresql://u:s3cr3t@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:s3%40cr3t@h/db?password=s3cr3t&x=y", "postgresql://u:***@h/db?password=***&x=***"),
        ("sqlite:////var/lib/t.db", "sqlite:////var/lib/t.db"),
        ("/var/lib/t.db", "/var/lib/t.db"),
    ],
)
def test_the_states_url_is_kept_whole_and_shown_without_secrets(state: str, shown: str) -> None:
    config = right(changed(FLAT_AVRO, state=state))
    assert config.state == state
    assert config.model_dump()["state"] == shown
    assert shown in config.model_dump_json()
    assert "s3cr3t" not in f"{config!r} {config}"


def test_a_misspelt_kafka_property_is_one_problem() -> None:
    found = wrong(changed(FLAT_AVRO, source__kafka={"sasl.pasword": "x"}))
    assert list(found) == ["source.kafka.sasl.pasword"]
    assert "did you mean sasl.password?" in found["source.kafka.sasl.pasword"].reason


@pytest.mark.parametrize(
    ("target", "conf"),
    [
        ({"single-writer": True}, {}),
        ({}, {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"}),
        ({}, {"spark.delta.logStore.class": "com.example.OurLogStore"}),
    ],
)
def test_lakes_on_s3_whose_commits_are_safe(target: dict[str, Any], conf: dict[str, str]) -> None:
    config = right(changed(FLAT_AVRO, target={"path": "s3a://lake/shop", **target}, spark={"conf": conf}))
    assert isinstance(config.target, DeltaSettings)
    assert config.target.single_writer is bool(target)


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "hadoop", "warehouse": "hdfs://lake/shop"},
        {"type": "hadoop", "warehouse": "s3a://lake/shop", "lock-impl": "a.b.DynamoDbLockManager"},
        {"type": "rest", "warehouse": "s3://lake/shop"},
    ],
)
def test_catalogs_whose_commits_are_safe(properties: dict[str, str]) -> None:
    right(changed(FLAT_AVRO, target={"type": "iceberg", "catalog-properties": properties}))
