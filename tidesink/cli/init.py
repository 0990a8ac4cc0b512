"""``tidesink init``: a commented config to start from."""

from __future__ import annotations

from enum import Enum
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from tidesink.cli.local_stack import running_stack
from tidesink.cli.options import DEFAULT_CONFIG
from tidesink.cli.output import Output, OutputFormat, note, write_json
from tidesink.dev.stack import DIRECTORY, StackAddresses
from tidesink.errors import ConfigError

_DEFAULT = StackAddresses("127.0.0.1:9092", "http://127.0.0.1:8081")

_CODEC = {
    "flat-avro": """\
  # The schema registry that the changefeed writes to.
  schema-registry: @registry@
  # As in the changefeed:
  enable-tidb-extension: false
  avro-decimal-handling-mode: precise         # precise | string
  avro-bigint-unsigned-handling-mode: long    # long | string
""",
    "canal-json": """\
  # As in the changefeed:
  enable-tidb-extension: false
  content-compatible: false
""",
}


class Protocol(str, Enum):
    """The protocols a config can be written for."""

    FLAT_AVRO = "flat-avro"
    CANAL_JSON = "canal-json"


def init(
    *,
    file: Annotated[Path, typer.Argument(help="Where to write it.")] = DEFAULT_CONFIG,
    protocol: Annotated[Protocol, typer.Option(help="The changefeed's protocol.")] = Protocol.FLAT_AVRO,
    pipeline: Annotated[str, typer.Option(help="A name for this pipeline.")] = "shop",
    brokers: Annotated[str | None, typer.Option(help="Kafka bootstrap servers.")] = None,
    schema_registry: Annotated[str | None, typer.Option(help="The registry's URL.")] = None,
    target: Annotated[str, typer.Option(help="The lake's root.")] = "./lake",
    force: Annotated[bool, typer.Option("--force", help="Replace a file that is there.")] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Write a commented config to start from.

    Where neither --brokers nor --schema-registry is given, it names those that `tidesink dev up` started in
    this folder; where none run, 127.0.0.1:9092 and http://127.0.0.1:8081.
    """
    if file.exists() and not force:
        raise ConfigError(f"{file} is there already: give another name, or --force to replace it")
    addresses = _addresses(brokers, schema_registry)
    text = (files("tidesink.cli") / "pipeline.yaml").read_text(encoding="utf-8")
    values = {
        "codec": _CODEC[protocol.value],
        "pipeline": pipeline,
        "brokers": addresses.brokers,
        "protocol": protocol.value,
        "registry": addresses.registry_url,
        "target": target,
    }
    for name, value in values.items():
        text = text.replace(f"@{name}@", value)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
    if output is OutputFormat.JSON:
        write_json({"file": str(file)})
    else:
        typer.echo(f"wrote {file}; next: tidesink validate {file} --connect, then tidesink plan {file}")


def _addresses(brokers: str | None, registry: str | None) -> StackAddresses:
    """What the options say; the running local stack's where they say nothing."""
    if brokers is None and registry is None:
        local = running_stack()
        if local is not None:
            note(
                f"{DIRECTORY} runs a local stack, the config names it: {local.brokers}, {local.registry_url}"
            )
            return local
    return StackAddresses(brokers or _DEFAULT.brokers, registry or _DEFAULT.registry_url)
