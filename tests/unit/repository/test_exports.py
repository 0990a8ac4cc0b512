"""The public names: what they are, and that importing them loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tidesink

NAMES = [
    "ChangeEvent",
    "CodecOptions",
    "DdlEvent",
    "Message",
    "MessageEvent",
    "Op",
    "Position",
    "TableDefinitions",
    "TableId",
    "TableSchema",
    "TidesinkError",
    "WatermarkEvent",
    "__version__",
    "consume",
    "load_config",
    "open_codec",
    "open_registry",
]


def test_the_public_names_are_these() -> None:
    assert tidesink.__all__ == NAMES
    assert dir(tidesink) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(tidesink, name) is not None


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'open_kodec'"):
        _ = tidesink.open_kodec


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_tidesink_loads_nothing_heavy() -> None:
    loaded = _loaded_by("import tidesink")
    assert not loaded & {"fastavro", "pydantic", "requests", "confluent_kafka", "pyspark", "typer", "orjson"}


def test_a_codec_opens_without_spark_and_kafka() -> None:
    loaded = _loaded_by(
        "import tidesink\n"
        "tidesink.open_codec('flat-avro', registry=tidesink.open_registry('memory://t'))\n"
        "tidesink.open_codec('canal-json')"
    )
    assert "fastavro" in loaded
    assert not loaded & {"pyspark", "py4j", "confluent_kafka", "pandas", "pyarrow", "sqlalchemy"}


def test_the_command_line_starts_without_spark() -> None:
    loaded = _loaded_by("import tidesink.cli.main")
    assert "tidesink.cli.plan" in loaded
    assert not loaded & {"pyspark", "py4j", "pandas", "pyarrow", "sqlalchemy"}
