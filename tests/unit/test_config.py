"""The config file: what it gives, and that everything wrong is told at once with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tidesink.change import TableId
from tidesink.config import Config, Problem, check_config, load_config, parse_config
from tidesink.config.identity import topic_tables
from tidesink.errors import ConfigError
from tidesink.schema_registry import MemorySchemaRegistry

FLAT_AVRO: dict[str, Any] = {
    "pipeline": "shop",
    "source": {
        "brokers": "127.0.0.1:9092",
        "protocol": "flat-avro",
        "topics": "{schema}_{table}",
        "schema-registry": "http://127.0.0.1:8081",
    },
    "target": {"path": "./lake"},
}
CANAL_JSON: dict[str, Any] = {
    "pipeline": "shop",
    "source": {"brokers": ["a:1", "b:2"], "protocol": "canal-json", "topics": ["app"]},
    "target": {"path": "s3://bucket/lake"},
}


def changed(base: dict[str, Any], **places: Any) -> dict[str, Any]:
    """A copy with settings replaced; ``source__kafka`` stands for source.kafka, None removes one."""
    copy: dict[str, Any] = yaml.safe_load(yaml.safe_dump(base))
    for place, value in places.items():
        *sections, name = place.split("__")
        section = copy
        for part in sections:
            section = section.setdefault(part.replace("_", "-"), {})
        name = name if name == "sequence_by" else name.replace("_", "-")
        if value is None:
            section.pop(name)
        else:
            section[name] = value
    return copy


def right(data: dict[str, Any], base: Path = Path("/base")) -> Config:
    config, problems = parse_config(data, base=base, environment={"SECRET": "s3cr3t"})
    assert problems == []
    assert config is not None
    return config


def wrong(data: dict[str, Any], base: Path = Path("/base")) -> dict[str, Problem]:
    config, problems = parse_config(data, base=base, environment={"SECRET": "s3cr3t"})
    assert config is None
    return {problem.field: problem for problem in problems}


def test_defaults_are_the_documented_ones() -> None:
    config = right(FLAT_AVRO)
    table = config.table_config(TableId("shop", "orders"))
    assert (table.sequence_by, table.deletes, table.zero_date, table.bad_record) == (
        "kafka",
        "hard",
        "null",
        "pause",
    )
    assert (config.batch.max_records, config.batch.max_bytes, config.batch.max_tables) == (500_000, 2**28, 2)
    assert config.retry.for_ == 300
    assert config.state == "/base/.tidesink/state.db"
    assert config.target.path == "/base/lake"
    assert config.source.time_zone == "UTC"


def test_a_config_cannot_be_changed() -> None:
    config = right(FLAT_AVRO)
    with pytest.raises(ValueError, match="frozen"):
        config.pipeline = "other"  # type: ignore[misc]


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
    options = config.source.codec_options()
    assert options.enable_tidb_extension is True
    assert options.avro_decimal_handling_mode == "string"
    assert options.avro_bigint_unsigned_handling_mode == "string"
    assert options.time_zone == "Asia/Shanghai"


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


CASES: list[tuple[str, dict[str, Any], str, str, str]] = [
    (
        "unknown key",
        changed(FLAT_AVRO, source__protocl="x"),
        "source.protocl",
        "did you mean protocol?",
        "use one of",
    ),
    ("unknown section", changed(FLAT_AVRO, sorce={}), "sorce", "did you mean source?", "use one of"),
    (
        "decimal mode",
        changed(FLAT_AVRO, source__avro_decimal_handling_mode="double"),
        "source.avro-decimal-handling-mode",
        "'double' is not allowed",
        "'precise' or 'string'",
    ),
    (
        "unsigned mode",
        changed(FLAT_AVRO, source__avro_bigint_unsigned_handling_mode="int"),
        "source.avro-bigint-unsigned-handling-mode",
        "'int' is not allowed",
        "'long' or 'string'",
    ),
    (
        "boolean",
        changed(FLAT_AVRO, source__enable_tidb_extension="maybe"),
        "source.enable-tidb-extension",
        "neither true nor false",
        "use true or false",
    ),
    (
        "protocol",
        changed(FLAT_AVRO, source__protocol="maxwell"),
        "source.protocol",
        "'maxwell'",
        "'flat-avro'",
    ),
    ("missing", changed(FLAT_AVRO, pipeline=None), "pipeline", "required", "add it"),
    ("time zone", changed(FLAT_AVRO, source__time_zone="Mars"), "source.time-zone", "'Mars'", "IANA"),
    (
        "rule without table",
        changed(FLAT_AVRO, source__topics="{schema}_all"),
        "source.topics",
        "a flat-avro topic rule must contain {schema} and {table}",
        "{schema}_{table}",
    ),
    (
        "rule without schema",
        changed(FLAT_AVRO, source__topics="app_{table}"),
        "source.topics",
        "a flat-avro topic rule must contain {schema} and {table}",
        "{schema}_{table}",
    ),
    (
        "rule reversed",
        changed(FLAT_AVRO, source__topics="{table}_{schema}"),
        "source.topics",
        "[prefix]{schema}[middle]{table}[suffix]",
        "correct the rule",
    ),
    (
        "fixed topic without a table",
        changed(FLAT_AVRO, source__topics="orders"),
        "source.topics",
        "a flat-avro topic rule must contain {schema} and {table}",
        "topic: orders",
    ),
    (
        "two tables on a fixed topic",
        changed(
            FLAT_AVRO,
            source__topics="one",
            tables=[{"name": "a.b", "topic": "one"}, {"name": "a.c", "topic": "one"}],
        ),
        "tables",
        "a fixed topic serves exactly one table",
        "its own topic",
    ),
    (
        "no registry",
        changed(FLAT_AVRO, source__schema_registry=None),
        "source.schema-registry",
        "flat-avro needs the schema registry",
        "add it",
    ),
    (
        "registry with canal-json",
        changed(CANAL_JSON, source__schema_registry="http://r:1"),
        "source.schema-registry",
        "no effect with protocol canal-json",
        "remove it",
    ),
    (
        "avro option with canal-json",
        changed(CANAL_JSON, source__avro_decimal_handling_mode="precise"),
        "source.avro-decimal-handling-mode",
        "no effect with protocol canal-json",
        "remove it",
    ),
    (
        "canal option with flat-avro",
        changed(FLAT_AVRO, source__only_output_updated_columns=False),
        "source.only-output-updated-columns",
        "no effect with protocol flat-avro",
        "remove it",
    ),
    (
        "watermark without the extension",
        changed(FLAT_AVRO, source__avro_enable_watermark=True),
        "source.avro-enable-watermark",
        "no effect without the TiDB extension",
        "enable-tidb-extension: true",
    ),
    (
        "raw change events",
        changed(FLAT_AVRO, source__output_raw_change_event=True),
        "source.output-raw-change-event",
        "without the old one",
        "avro-include-before-value",
    ),
    (
        "order by source",
        changed(FLAT_AVRO, defaults__sequence_by="source"),
        "defaults.sequence_by",
        "not in this version",
        "sequence_by: kafka",
    ),
    (
        "order by source for one table",
        changed(FLAT_AVRO, tables=[{"name": "a.b", "sequence_by": "source"}]),
        "tables[0].sequence_by",
        "not in this version",
        "sequence_by: kafka",
    ),
    (
        "table name",
        changed(FLAT_AVRO, tables=[{"name": "orders"}]),
        "tables[0].name",
        "'orders'",
        "schema.table",
    ),
    (
        "table without a name",
        changed(FLAT_AVRO, tables=[{"keys": ["a"]}]),
        "tables[0]",
        "name or match",
        "give",
    ),
    (
        "topic with canal-json",
        changed(CANAL_JSON, tables=[{"name": "a.b", "topic": "t"}]),
        "tables[0].topic",
        "no effect with canal-json",
        "source.topics",
    ),
    (
        "one path for two tables",
        changed(FLAT_AVRO, target__table="{table}"),
        "target.table",
        "share one path",
        "{schema}/{table}",
    ),
    (
        "no path",
        changed(FLAT_AVRO, target__path=None, target__type="delta"),
        "target.path",
        "lake's root",
        "add it",
    ),
    (
        "dead letters nobody writes",
        changed(FLAT_AVRO, dead_letters__path="x"),
        "dead-letters.path",
        "no effect",
        "bad-record: dead-letter",
    ),
    ("size", changed(FLAT_AVRO, batch__max_bytes="lots"), "batch.max-bytes", "'lots'", "64MiB"),
    (
        "registry URL",
        changed(FLAT_AVRO, source__schema_registry="r:8081"),
        "source.schema-registry.urls[0]",
        "not allowed",
        "http://",
    ),
    (
        "half of basic auth",
        changed(FLAT_AVRO, source__schema_registry={"url": "http://r", "auth": {"username": "u"}}),
        "source.schema-registry.auth",
        "incomplete",
        "username and password",
    ),
    (
        "kafka property",
        changed(FLAT_AVRO, source__kafka={"securty.protocol": "SSL"}),
        "source.kafka.securty.protocol",
        "did you mean security.protocol?",
        "use one of",
    ),
    (
        "kafka property under another client's name",
        changed(FLAT_AVRO, source__kafka={"sasl.jaas.config": "x"}),
        "source.kafka.sasl.jaas.config",
        "not taken under this name",
        "sasl.username and sasl.password",
    ),
    (
        "kafka value",
        changed(FLAT_AVRO, source__kafka={"security.protocol": "TLS"}),
        "source.kafka.security.protocol",
        "not allowed",
        "PLAINTEXT or SSL",
    ),
    (
        "sasl without its parts",
        changed(FLAT_AVRO, source__kafka={"security.protocol": "SASL_SSL", "sasl.username": "u"}),
        "source.kafka.sasl.password",
        "required with security.protocol SASL_SSL",
        "add it",
    ),
    (
        "tls without effect",
        changed(FLAT_AVRO, source__kafka={"ssl.ca.location": "ca.pem"}),
        "source.kafka",
        "no effect with security.protocol PLAINTEXT",
        "SASL_SSL",
    ),
    (
        "environment",
        changed(FLAT_AVRO, pipeline="${env:NO_SUCH_NAME}"),
        "pipeline",
        "the environment has no NO_SUCH_NAME",
        "set NO_SUCH_NAME",
    ),
    (
        "reference",
        changed(FLAT_AVRO, pipeline="${HOME}"),
        "pipeline",
        "is no reference",
        "${env:NAME} or ${file:path}",
    ),
]


@pytest.mark.parametrize(
    ("data", "field", "reason", "remedy"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_each_refusal_names_field_reason_and_remedy(
    data: dict[str, Any], field: str, reason: str, remedy: str
) -> None:
    problem = wrong(data)[field]
    assert reason in problem.reason
    assert remedy in problem.remedy


def test_raw_change_events_pass_with_the_before_value() -> None:
    right(changed(FLAT_AVRO, source__output_raw_change_event=True, source__avro_include_before_value=True))


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
    assert config.source.spark_properties()["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        'username="u" password="s3cr3t\\"\\\\";'
    )
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


def test_tls_files_serve_both_clients(tmp_path: Path) -> None:
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
    confluent, spark = config.source.confluent_properties(), config.source.spark_properties()
    assert confluent["ssl.ca.location"] == str(tmp_path / "ca.pem")
    assert confluent["ssl.endpoint.identification.algorithm"] == "none"
    assert spark["kafka.ssl.truststore.type"] == "PEM"
    assert spark["kafka.ssl.truststore.location"] == str(tmp_path / "ca.pem")
    assert spark["kafka.ssl.keystore.certificate.chain"] == "-- cert.pem --"
    assert spark["kafka.ssl.keystore.key"] == "-- key.pem --"
    assert spark["kafka.ssl.endpoint.identification.algorithm"] == ""
    assert all(name.startswith("kafka.") for name in spark)


def test_every_allowed_property_is_one_librdkafka_knows() -> None:
    from confluent_kafka import Consumer, KafkaException

    from tidesink.config.kafka import ALLOWED

    for name in ALLOWED:
        try:
            Consumer({"group.id": "g", name: "1"})
        except KafkaException as error:
            assert "No such configuration property" not in str(error), name  # noqa: PT017


def test_tables_take_their_own_settings_then_patterns_then_defaults() -> None:
    config = right(
        changed(
            FLAT_AVRO,
            defaults__deletes="soft",
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
    assert config.table_config(TableId("a", "t")).definition == "CREATE TABLE t (id int)"
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
    with pytest.raises(ConfigError, match="can be read as several tables"):
        table_of("x_y_z")
    with pytest.raises(ConfigError, match=r"topic: k_l_m"):
        table_of("k_l_m")


def test_canal_json_takes_tables_from_messages() -> None:
    config = right(CANAL_JSON)
    assert config.table_of_topic("app") is None
    assert config.topics_among(["app", "b"]) == ("app",)
    assert config.source.bootstrap_servers == "a:1,b:2"
    assert config.target_path(TableId("shop", "orders")) == "s3://bucket/lake/shop/orders"


@pytest.mark.parametrize(
    ("names", "path"),
    [
        (("shop", "a/b"), "shop/a_x2f_b"),
        (("shop", ".."), "shop/_x2e__x2e_"),
        (("shop", "a_x2f_b"), "shop/a_x5f_x2f_b"),
        (("库", "表"), "库/表"),
    ],
)
def test_no_two_tables_share_a_path(names: tuple[str, str], path: str) -> None:
    assert right(FLAT_AVRO).target_path(TableId(*names)) == f"/base/lake/{path}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pipeline: [", "is no YAML in line 1"),
        ("pipeline: a\npipeline: b", "pipeline is given twice"),
        ("", "is no mapping of settings"),
        ("- a", "is no mapping of settings"),
    ],
)
def test_a_file_that_is_no_config(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(file)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory; tidesink init writes one"):
        check_config(tmp_path / "none.yaml")


def test_the_message_lists_every_problem(tmp_path: Path) -> None:
    file = tmp_path / "t.yaml"
    file.write_text(yaml.safe_dump(changed(FLAT_AVRO, pipeline="", batch__max_records="x")))
    with pytest.raises(ConfigError) as raised:
        load_config(file)
    assert "2 settings are wrong in t.yaml" in raised.value.message
    assert "batch.max-records: 'x' is no number" in raised.value.message
