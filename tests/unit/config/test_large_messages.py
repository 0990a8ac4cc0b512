"""Large messages in the config: what a codec is given, and what is never shown."""

from __future__ import annotations

from pathlib import Path

from tests.unit.config.samples import CANAL_JSON, changed
from tidesink.codecs.options import CanalJsonOptions
from tidesink.config import Config

GIVEN = changed(
    CANAL_JSON,
    source__enable_tidb_extension=True,
    source__large_message_handle_option="claim-check",
    source__large_message_handle_compression="lz4",
    source__claim_check_storage_uri="s3://bucket/claims?access-key=AK&secret-access-key=SECRET",
    source__claim_check_raw_value=True,
    source__upstream_url="mysql+pymysql://reader:SECRET@tidb:4000",
    source__max_decompressed_bytes="16MiB",
)


def test_a_codec_is_given_what_the_config_says() -> None:
    options = Config.model_validate(GIVEN).source.options_of(CanalJsonOptions)
    assert options == CanalJsonOptions(
        enable_tidb_extension=True,
        large_message_handle_option="claim-check",
        large_message_handle_compression="lz4",
        claim_check_storage_uri="s3://bucket/claims?access-key=AK&secret-access-key=SECRET",
        claim_check_raw_value=True,
        upstream_url="mysql+pymysql://reader:SECRET@tidb:4000",
        max_decompressed_bytes=16 * 2**20,
        time_zone=options.time_zone,
    )


def test_debezium_json_may_be_compressed() -> None:
    given = changed(
        CANAL_JSON,
        source__protocol="debezium",
        source__large_message_handle_compression="snappy",
        source__max_decompressed_bytes="16MiB",
    )
    options = Config.model_validate(given).source.options_of(CanalJsonOptions)
    assert options.large_message_handle_compression == "snappy"
    assert options.max_decompressed_bytes == 16 * 2**20


def test_secrets_are_never_shown() -> None:
    config = Config.model_validate(GIVEN)
    shown = f"{config!r} {config} {config.model_dump()} {config.model_dump_json()}"
    assert "SECRET" not in shown + repr(config.source.options_of(CanalJsonOptions))


def test_a_worker_opens_values_only_where_the_changefeed_compresses() -> None:
    assert Config.model_validate(GIVEN).source.opens_up_to == 16 * 2**20
    assert Config.model_validate(CANAL_JSON).source.opens_up_to is None
    assert Config.model_validate(CANAL_JSON).source.options_of(CanalJsonOptions).claim_check_storage_uri == ""


def test_a_directory_is_read_from_the_configs_own_folder(tmp_path: Path) -> None:
    given = changed(CANAL_JSON, source__claim_check_storage_uri="claims")
    config = Config.model_validate(given, context={"base": tmp_path})
    assert config.source.options_of(CanalJsonOptions).claim_check_storage_uri == str(tmp_path / "claims")
