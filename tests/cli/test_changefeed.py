"""``tidesink init --sink-uri``: from a changefeed to the config that reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.samples import run
from tidesink.codecs.options import CanalJsonOptions, FlatAvroOptions
from tidesink.config import load_config

REGISTRY = "schema-registry=http://reg:8081"
AVRO = f"kafka://k1:9092,k2:9092/rest?protocol=avro&{REGISTRY}"
CANAL = "kafka://k1:9092/app?protocol=canal-json"
PER_TABLE = "[sink]\ndispatchers=[{matcher=['*.*'],topic='{schema}_{table}',partition='index-value'}]\n"
SECRET = "hunter2"


def written(tmp_path: Path, sink_uri: str, toml: str = "", *more: str) -> Path:
    feed = tmp_path / "feed.toml"
    feed.write_text(toml, encoding="utf-8")
    file = tmp_path / "t.yaml"
    result = run("init", str(file), "--sink-uri", sink_uri, "--changefeed", str(feed), *more)
    assert result.exit_code == 0, result.stderr
    return file


def refused(tmp_path: Path, sink_uri: str, toml: str = "", *more: str) -> str:
    feed = tmp_path / "feed.toml"
    feed.write_text(toml, encoding="utf-8")
    file = tmp_path / "t.yaml"
    result = run("init", str(file), "--sink-uri", sink_uri, "--changefeed", str(feed), *more)
    assert result.exit_code == 2
    assert not file.exists()
    assert "Traceback" not in result.stderr
    return str(result.stderr)


def _folder(tmp_path: Path) -> Path:
    other = tmp_path / "other"
    other.mkdir()
    return other


def test_the_config_says_what_the_changefeed_says(tmp_path: Path) -> None:
    uri = f"{AVRO}&enable-tidb-extension=true&avro-decimal-handling-mode=string&avro-enable-watermark=true"
    config = load_config(written(tmp_path, uri, PER_TABLE))
    assert config.source.brokers == ("k1:9092", "k2:9092")
    assert (config.source.protocol, config.source.topics) == ("flat-avro", ("{schema}_{table}",))
    assert config.source.schema_registry is not None
    assert config.source.schema_registry.urls == ("http://reg:8081",)
    options = config.source.options_of(FlatAvroOptions)
    assert (options.enable_tidb_extension, options.avro_enable_watermark) == (True, True)
    assert (options.avro_decimal_handling_mode, options.avro_bigint_unsigned_handling_mode) == (
        "string",
        "long",
    )


def test_new_ticdcs_debezium_avro_is_a_pipeline_too(tmp_path: Path) -> None:
    uri = f"kafka://k1:9092/rest?protocol=debezium-avro&{REGISTRY}&enable-tidb-extension=true"
    config = load_config(written(tmp_path, uri, PER_TABLE, "--producer", "new"))
    assert (config.source.protocol, config.source.topics) == ("debezium-avro", ("{schema}_{table}",))
    assert config.source.schema_registry is not None
    assert "share the topic rest" in refused(_folder(tmp_path), uri, "", "--producer", "new")


def test_ticdcs_debezium_is_debezium_json(tmp_path: Path) -> None:
    uri = "kafka://k1:9092/rest?protocol=debezium&enable-tidb-extension=true"
    config = load_config(written(tmp_path, uri, PER_TABLE))
    assert (config.source.protocol, config.source.topics) == ("debezium-json", ("{schema}_{table}",))
    assert config.source.schema_registry is None
    assert "share the topic rest" in refused(_folder(tmp_path), uri, "")


def test_canal_json_topics_are_those_that_rows_can_be_in(tmp_path: Path) -> None:
    toml = "[sink]\ncontent-compatible=true\ndispatchers=[{matcher=['a.*'],topic='{table}'}]\n"
    config = load_config(written(tmp_path, CANAL, toml))
    assert config.source.topics == ("{table}", "app")
    assert config.source.content_compatible
    assert config.source.only_output_updated_columns


def test_a_fixed_flat_avro_topic_gets_its_table(tmp_path: Path) -> None:
    toml = (
        "[sink]\ndispatchers=[{matcher=['shop.orders'],topic='o'},{matcher=['*.*'],topic='{schema}.{table}'}]"
    )
    config = load_config(written(tmp_path, AVRO, toml))
    assert [(str(entry.table), entry.topic) for entry in config.tables] == [("shop.orders", "o")]
    assert config.source.topics == ("o", "{schema}.{table}")


def test_a_filter_with_one_table_owns_the_topic_of_the_uri(tmp_path: Path) -> None:
    config = load_config(written(tmp_path, AVRO, "[filter]\nrules=['shop.orders']\n"))
    assert [(entry.name, entry.topic) for entry in config.tables] == [("shop.orders", "rest")]


LARGE = "[sink.kafka-config.large-message-handle]\nlarge-message-handle-compression='lz4'\n"


def test_new_ticdcs_debezium_may_be_compressed(tmp_path: Path) -> None:
    uri = "kafka://k1:9092/rest?protocol=debezium&enable-tidb-extension=true"
    config = load_config(written(tmp_path, uri, PER_TABLE + LARGE, "--producer", "new"))
    assert config.source.options_of(CanalJsonOptions).large_message_handle_compression == "lz4"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [("file:///var/claims", "file:///var/claims"), (f"s3://b/p?access-key={SECRET}", "${env:")],
)
def test_large_messages_are_found_where_the_changefeed_puts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str, shown: str
) -> None:
    toml = f"{LARGE}large-message-handle-option='claim-check'\nclaim-check-storage-uri='{uri}'\n"
    file = written(tmp_path, f"{CANAL}&enable-tidb-extension=true", toml)
    text = file.read_text(encoding="utf-8")
    assert SECRET not in text
    assert f"claim-check-storage-uri: {shown}" in text
    monkeypatch.setenv("CLAIM_CHECK_STORAGE_URI", uri)
    options = load_config(file).source.options_of(CanalJsonOptions)
    assert (options.large_message_handle_option, options.large_message_handle_compression) == (
        "claim-check",
        "lz4",
    )
    assert options.claim_check_storage_uri == uri


def test_rows_with_checksums_are_checked(tmp_path: Path) -> None:
    uri = (
        f"{AVRO}&enable-tidb-extension=true&avro-decimal-handling-mode=string"
        "&avro-bigint-unsigned-handling-mode=string"
    )
    toml = f"{PER_TABLE}[integrity]\nintegrity-check-level='correctness'\n"
    assert load_config(written(tmp_path, uri, toml)).source.checksum == "warn"


@pytest.mark.parametrize("where", ["uri", "file"])
def test_secrets_become_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    sasl = {
        "sasl-user": "me",
        "sasl-password": SECRET,
        "sasl-mechanism": "scram-sha-512",
        "enable-tls": "true",
    }
    uri, toml = f"kafka://k:9092/rest?protocol=avro&schema-registry=http://u:{SECRET}@reg:8081", PER_TABLE
    if where == "uri":
        uri += "".join(f"&{name}={value}" for name, value in sasl.items())
    else:
        lines = [f"{name}={value if value == 'true' else repr(value)}" for name, value in sasl.items()]
        toml += "\n".join(["[sink.kafka-config]", *lines])
    file = written(tmp_path, uri, toml)
    assert SECRET not in file.read_text(encoding="utf-8")
    monkeypatch.setenv("KAFKA_PASSWORD", "a")
    monkeypatch.setenv("SCHEMA_REGISTRY_PASSWORD", "b")
    config = load_config(file)
    properties = config.source.confluent_properties()
    assert {name: properties[name] for name in ("security.protocol", "sasl.mechanism", "sasl.password")} == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.password": "a",
    }
    assert config.source.schema_registry is not None
    assert config.source.schema_registry.urls == ("http://reg:8081",)


@pytest.mark.parametrize(
    ("uri", "toml"),
    [
        (f"kafka://u:{SECRET}@k/t?protocol=canal&sasl-password={SECRET}&partition-num=0", ""),
        (f"{CANAL}&sasl-password={SECRET}", f"[sink.kafka-config]\nsasl-password=1\nca='{SECRET}'\n"),
        (f"kafka://k/t?protocol=avro&schema-registry=http://u:{SECRET}@r:1", "force-replicate=true"),
        (f"kafka://k/t?protocol=avro&schema-registry=http://u:{SECRET}@r:1", ""),
        (f"{CANAL}&sasl-mechanism=GSSAPI&sasl-gssapi-password={SECRET}", ""),
        (f"{SECRET}", ""),
    ],
)
def test_no_error_shows_a_secret(tmp_path: Path, uri: str, toml: str) -> None:
    assert SECRET not in refused(tmp_path, uri, toml)


@pytest.mark.parametrize(
    ("uri", "toml", "says"),
    [
        (AVRO, "", "share the topic rest"),
        (AVRO, "[sink]\ndispatchers=[{matcher=['a.*'],topic='x'}]", "the tables of a.* share"),
        (AVRO, PER_TABLE.replace("index-value", "ts"), "over partitions by their commit ts"),
        (CANAL, PER_TABLE.replace("index-value", "ts"), "use partition = 'index-value' or 'table'"),
        (CANAL, PER_TABLE.replace("'index-value'", "'columns',columns=['id']"), "--table-definition"),
        (CANAL, PER_TABLE.replace("'index-value'", "'index-value',index='u'"), "hashes the index u"),
        (f"{AVRO}&x=1", "[sink.kafka-config]\noutput-raw-change-event=true\n" + PER_TABLE, "update of a key"),
        ("kafka://k:1/t?protocol=open-protocol", "", "protocol is open-protocol"),
        ("kafka://k:1/a/b?protocol=canal-json", "", "source.topics"),
        ("kafka://k/t?protocol=canal-json", "", "give host:port"),
        ("mysql://k:1/", "", "writes to mysql, but tidesink reads Kafka"),
        ("kafka://k:1/?protocol=canal-json", "", "names no topic"),
        ("kafka://k:1/t?protocol=cnal-json", "", "did you mean canal-json?"),
        (
            f"{CANAL}&enable-tidb-extension=true",
            "[sink.kafka-config.large-message-handle]\nlarge-message-handle-option='claim-check'\n",
            "source.claim-check-storage-uri: required",
        ),
        (CANAL, "[sink\n", "are not TOML"),
        (CANAL, "sink=1\n", "sink must be a section"),
        (CANAL, "[sink]\ndispatchers=['x']\n", "must be a list"),
        (CANAL, "[sink]\ndispatchers=[{matcher='a.*'}]\n", "matcher must be a list of texts"),
        (CANAL, "[sink]\ncontent-compatible='true'\n", "true or false without quotes"),
        ("/not/a/uri", "", "has no scheme"),
    ],
)
def test_what_a_pipeline_cannot_read_is_refused_with_the_way_out(
    tmp_path: Path, uri: str, toml: str, says: str
) -> None:
    assert says in refused(tmp_path, uri, toml)


def test_columns_of_the_key_are_no_danger(tmp_path: Path) -> None:
    sql = tmp_path / "t.sql"
    toml = PER_TABLE.replace("'index-value'", "'columns',columns=['ID']")
    sql.write_text("create table shop.orders(id int, n int, v int, primary key(id, n));")
    assert written(tmp_path, CANAL, toml, "--table-definition", str(sql)).exists()
    (tmp_path / "t.yaml").unlink()
    sql.write_text("create table shop.orders(id int, n int primary key);")
    assert "hashes ID" in refused(tmp_path, CANAL, toml, "--table-definition", str(sql))


def test_a_changefeed_without_its_uri_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "f.toml").write_text("")
    result = run("init", str(tmp_path / "t.yaml"), "--changefeed", str(tmp_path / "f.toml"))
    assert (result.exit_code, "Give --sink-uri" in result.stderr) == (2, True)
    result = run("init", str(tmp_path / "t.yaml"), "--sink-uri", CANAL, "--protocol", "canal-json")
    assert (result.exit_code, "The sink URI contains the protocol and the registry" in result.stderr) == (
        2,
        True,
    )


def test_what_ticdc_would_ignore_is_noted(tmp_path: Path) -> None:
    feed = tmp_path / "f.toml"
    feed.write_text("[sink]\ndispatchers=[{matcher=['b.*'],partition='foo'}]")
    result = run("init", str(tmp_path / "t.yaml"), "--sink-uri", CANAL, "--changefeed", str(feed))
    assert result.exit_code == 0
    assert "'foo' is unknown" in result.stderr


def test_the_sink_uri_may_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDESINK_SINK_URI", CANAL)
    assert run("init", str(tmp_path / "t.yaml")).exit_code == 0
    assert load_config(tmp_path / "t.yaml").source.topics == ("app",)


def test_the_filter_says_what_no_dispatcher_fits(tmp_path: Path) -> None:
    """The rest is one table, or none: its topic needs no name of a table that cannot come."""
    toml = (
        "[filter]\nrules=['shop.*','!shop.tmp*','hr.staff']\n"
        "[sink]\ndispatchers=[{matcher=['shop.*'],topic='{schema}_{table}'}]\n"
    )
    config = load_config(written(tmp_path, AVRO, toml))
    assert config.source.topics == ("{schema}_{table}", "rest")
    assert [(entry.name, entry.topic) for entry in config.tables] == [("hr.staff", "rest")]
    whole = written(tmp_path, AVRO, toml.replace(",'hr.staff'", ""), "--force")
    assert load_config(whole).source.topics == ("{schema}_{table}",)


def test_the_filter_says_which_tables_a_dispatcher_has(tmp_path: Path) -> None:
    toml = (
        "[filter]\nrules=['shop.orders','hr.staff']\n"
        "[sink]\ndispatchers=[{matcher=['shop.*'],topic='s'},{matcher=['old.*'],topic='o'}]\n"
    )
    config = load_config(written(tmp_path, AVRO, toml))
    assert config.source.topics == ("s", "rest")
    assert [(entry.name, entry.topic) for entry in config.tables] == [
        ("shop.orders", "s"),
        ("hr.staff", "rest"),
    ]
    both = toml.replace("'hr.staff'", "'shop.items'")
    text = refused(_folder(tmp_path), AVRO, both)
    assert "the tables of shop.* share the topic s" in text
    assert "where: key=changefeed: sink.dispatchers[0]" in text


@pytest.mark.parametrize(
    "rules", ["['shop.*','hr.*']", "['*.*','!hr.*']", "['shop.*','a.b','a.c']"], ids=["schema", "all", "two"]
)
def test_a_filter_that_leaves_several_tables_is_refused(tmp_path: Path, rules: str) -> None:
    toml = (
        f"[filter]\nrules={rules}\n[sink]\ndispatchers=[{{matcher=['shop.*'],topic='{{schema}}_{{table}}'}}]"
    )
    assert "tables that no dispatcher matches share the topic rest" in refused(tmp_path, AVRO, toml)


def test_a_dispatcher_that_leaves_tables_out_does_not_cover_them(tmp_path: Path) -> None:
    toml = (
        "[filter]\nrules=['shop.*']\n"
        "[sink]\ndispatchers=[{matcher=['shop.*','!shop.a'],topic='{schema}_{table}'}]"
    )
    assert "tables that no dispatcher matches" in refused(tmp_path, AVRO, toml)
