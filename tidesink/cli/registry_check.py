"""``tidesink registry check``: would the registry take the schemas of these tables?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from tidesink.cli import exits, sources
from tidesink.cli import registry_options as options
from tidesink.cli.codec_options import Given, codec_options, protocol_named, with_codec_options
from tidesink.cli.output import Output, OutputFormat, warn, write_json
from tidesink.cli.registry_tables import (
    NAMED_BY_ID,
    Candidates,
    config_tables,
    defined_tables,
    of_config,
    of_tables,
    of_topic,
    sql_file,
    topic_namer,
)
from tidesink.cli.registry_verdicts import show_verdicts
from tidesink.codecs.base import CodecOptions
from tidesink.config import Config, load_config
from tidesink.errors import ConfigError
from tidesink.events import TableSchema
from tidesink.schema_registry import MemorySchemaRegistry, SchemaRegistry
from tidesink.schema_registry.base import CompatibilityLevel, require_level
from tidesink.schema_registry.compatibility import Verdict, verdict

Definition = Annotated[
    Path | None,
    typer.Option("--table-definition", help="SQL DDL: CREATE TABLEs; or ALTERs, over what is known."),
]
Database = Annotated[
    str | None, typer.Option("--database", help="The database of tables that the DDL names without one.")
]
Rule = Annotated[
    str | None,
    typer.Option("--topic-rule", help="The changefeed's topic rule; the config's, or {schema}_{table}."),
]


class Request(NamedTuple):
    """Which tables are meant, under which options: what ``check``, ``diff`` and ``register`` share."""

    given: Given
    definition: Path | None
    database: str | None
    rule: str | None
    topic: str | None = None
    start: str = "earliest"
    brokers: str | None = None
    protocol: str | None = None
    previous: Path | None = None

    def tables(self, config: Config | None) -> list[TableSchema]:
        """The tables of the definition, over those of before; raises ConfigError where there are none."""
        before = config_tables(config)
        if self.previous is not None:
            before.append(sql_file("--previous", self.previous, self.database))
        assert self.definition is not None  # noqa: S101  # asked for only where one is given
        return defined_tables(sql_file("--table-definition", self.definition, self.database), before)


@with_codec_options
def check(
    *,
    given: Given,
    table_definition: Definition = None,
    topic: Annotated[
        str | None, typer.Option(help="A live topic: the schemas of its newest records.")
    ] = None,
    start: Annotated[str, typer.Option("--from", help="Where to begin in --topic.")] = "earliest",
    brokers: Annotated[str | None, typer.Option(help="Kafka bootstrap servers, for --topic.")] = None,
    protocol: sources.ProtocolName = None,
    database: Database = None,
    topic_rule: Rule = None,
    previous: Annotated[
        Path | None, typer.Option(help="SQL DDL of before, in place of a registry: BACKWARD, or --level.")
    ] = None,
    level: Annotated[
        str | None, typer.Option(help="Judge by this level, offline, in place of the subject's own.")
    ] = None,
    live: Annotated[
        bool | None, typer.Option("--live/--no-live", help="Ask the registry too; it is, where there is one.")
    ] = None,
    schema_registry: options.Url = None,
    registry_file: options.SettingsFile = None,
    config: options.ConfigFile = None,
    schemas: options.Export = None,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Say per subject and field whether the registry would take the schemas that TiCDC registers.

    The tables come from --table-definition, --topic or --config. They are judged by Avro's rules and, where
    there is a live registry, by it. Exit code 1 where a schema is not taken.
    """
    wanted = None if level is None else require_level(level.upper())
    place = options.Place(schema_registry, registry_file, config, schemas)
    request = Request(
        given, table_definition, database, topic_rule, topic, start, brokers, protocol, previous
    )
    with _judging(place, previous) as found:
        made = candidates(request, found)
        registry = _before(request, previous, found.config, wanted) if previous else found.registry
        asks = _asks(live, found.live, wanted)
        verdicts = judged(registry, made, level=wanted, live=asks)
    _report(verdicts, made, live=asks, output=output)
    if made.failed or not verdicts or not all(item.taken for item in verdicts):
        raise typer.Exit(exits.FAILED)


@contextmanager
def _judging(place: options.Place, previous: Path | None) -> Iterator[options.Opened]:
    """The registry to judge against; none is needed where a definition of before stands in for it."""
    if previous is None:
        with options.opened(place) as found:
            yield found
        return
    if options.any_given(place):
        raise ConfigError("--previous stands in for a registry: give one of the two")
    yield options.Opened(
        MemorySchemaRegistry(), False, str(previous), load_config(place.config) if place.config else None
    )


def _asks(live: bool | None, can: bool, level: CompatibilityLevel | None) -> bool:
    """Whether the registry is asked as well."""
    if live and not can:
        raise ConfigError("--live needs a registry that can be asked: give --schema-registry or --config")
    if live and level is not None:
        raise ConfigError("--live and --level exclude each other: a registry judges by its own level")
    return can and level is None if live is None else live


def _before(
    request: Request, file: Path, config: Config | None, level: CompatibilityLevel | None
) -> SchemaRegistry:
    """A registry that holds what TiCDC registered for the tables of before."""
    made = of_tables(
        defined_tables(sql_file("--previous", file, request.database)),
        _options(request, config),
        topic_namer(request.rule, config),
    )
    registry = MemorySchemaRegistry(url=file.name)
    for item in made.found:
        registry.register(item.subject, item.schema_text)
    registry.set_compatibility_level(level or "BACKWARD")
    return registry


def _options(request: Request, config: Config | None) -> CodecOptions:
    return codec_options(request.given, config.source.codec_options() if config else None)


def candidates(request: Request, found: options.Opened) -> Candidates:
    """The schemas of the tables that a command line names.

    Raises:
        ConfigError: no tables are named, or they cannot be read.
    """
    topic_of = topic_namer(request.rule, found.config)
    if request.topic is not None:
        setting = _topic_setting(request, found)
        return of_topic(setting, request.topic, request.start, request.brokers, topic_of)
    made = _options(request, found.config)
    if request.definition is not None:
        return of_tables(request.tables(found.config), made, topic_of)
    if found.config is not None:
        return of_config(found.config, made, topic_of)
    raise ConfigError("which tables? Give --table-definition FILE, --topic NAME or --config FILE")


def _topic_setting(request: Request, found: options.Opened) -> sources.Setting:
    config = found.config
    name = protocol_named(request.protocol or (config.source.protocol if config else None))
    if name in NAMED_BY_ID and request.given:
        raise ConfigError(
            f"a {name} topic names its schemas itself, so producer options have no effect with --topic: "
            "remove them, or give --table-definition"
        )
    own = config.source.open_registry() if config and config.source.schema_registry else found.registry
    return sources.Setting(
        protocol=name,
        options=_options(request, config),
        declared=request.given,
        registry=own,
        definitions=sources.definitions_of(request.definition, config),
        table_of_topic=None,
        config=config,
    )


def judged(
    registry: SchemaRegistry, made: Candidates, *, level: CompatibilityLevel | None, live: bool
) -> list[Verdict]:
    """The verdicts of all candidates, in their order."""
    return [verdict(registry, one.subject, one.schema_text, level=level, live=live) for one in made.found]


def _report(verdicts: Sequence[Verdict], made: Candidates, *, live: bool, output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        write_json(report_json(verdicts, made))
        return
    show_verdicts(verdicts, live=live)
    show_left_out(made)


def report_json(verdicts: Sequence[Verdict], made: Candidates) -> dict[str, Any]:
    """All verdicts as a JSON object."""
    return {
        "ok": bool(verdicts) and not made.failed and all(item.taken for item in verdicts),
        "subjects": [item.as_json() for item in verdicts],
        "skipped": made.skipped,
        "failed": made.failed,
    }


def show_left_out(made: Candidates) -> None:
    """What could not be judged, and what TiCDC itself would stop at."""
    for name, reason in made.skipped.items():
        warn(f"{name} is not judged: {reason}")
    for name, reason in made.failed.items():
        typer.echo(f"{name}: TiCDC's encoder would stop: {reason}")
