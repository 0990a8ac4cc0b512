"""The options of the codecs: each codec has its own, and refuses another's."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from tidesink.codecs.base import CodecOptions
from tidesink.codecs.open import CODECS, open_codec
from tidesink.codecs.options import CanalJsonOptions, DebeziumOptions, FlatAvroOptions
from tidesink.config.source import SourceSettings
from tidesink.config.targets import KafkaSettings
from tidesink.errors import ConfigError
from tidesink.schema_registry import MemorySchemaRegistry

PROTOCOLS = list(CODECS)
# Settings that config itself reads, or that it hands to the codec in another form.
NO_OPTIONS = {"output_raw_change_event", "schema_registry"}


def names(options: type[CodecOptions]) -> set[str]:
    return {option.name for option in fields(options)}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_settings_that_a_protocol_supports_are_options_of_its_codec(protocol: str) -> None:
    known = CODECS[protocol]
    used = (known.reads | (known.writes or frozenset())) - NO_OPTIONS
    assert used <= names(known.options)
    assert used <= SourceSettings.model_fields.keys() | KafkaSettings.model_fields.keys()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_shared_options_fit_every_codec(protocol: str) -> None:
    shared = CodecOptions(enable_tidb_extension=True, max_message_bytes=5, time_zone="Asia/Shanghai")
    codec = open_codec(protocol, options=shared, registry=MemorySchemaRegistry())
    own = CODECS[protocol].options
    assert codec._options == own(enable_tidb_extension=True, max_message_bytes=5, time_zone="Asia/Shanghai")


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("options", [FlatAvroOptions(), CanalJsonOptions(), DebeziumOptions()])
def test_options_of_another_codec_are_refused(protocol: str, options: CodecOptions) -> None:
    own = CODECS[protocol].options
    if isinstance(options, own):
        return
    with pytest.raises(ConfigError, match=f"options are {own.__name__}, not {type(options).__name__}"):
        open_codec(protocol, options=options, registry=MemorySchemaRegistry())


@pytest.mark.parametrize(
    ("options", "given"),
    [
        (FlatAvroOptions, {"content_compatible": True}),
        (CanalJsonOptions, {"checksum": "reject"}),
        (DebeziumOptions, {"producer": "new"}),
        (CodecOptions, {"checksum": "reject"}),
    ],
)
def test_an_option_that_a_codec_does_not_have_is_an_error(
    options: type[CodecOptions], given: dict[str, Any]
) -> None:
    (name,) = given
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
        options(**given)
    assert options().updated(given) == options()
