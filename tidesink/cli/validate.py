"""``tidesink validate``: per field what is wrong and what to do; with ``--connect`` also what answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from tidesink.cli import exits
from tidesink.cli.failures import error_block
from tidesink.cli.options import ConfigArgument, ConfigOption, config_path
from tidesink.cli.output import Output, OutputFormat, write_json
from tidesink.config import Config, Problem, check_config
from tidesink.errors import ConfigError, SchemaNotFoundError, TidesinkError


class Answer(NamedTuple):
    """What one part of the outside said."""

    part: str
    ok: bool
    detail: str


def validate(
    config: ConfigArgument = None,
    config_option: ConfigOption = None,
    connect: Annotated[
        bool,
        typer.Option(
            "--connect",
            help="Also ask the broker, the registry, the state store, the target's path and the dead "
            "letters' topic.",
        ),
    ] = False,
    output: Output = OutputFormat.TEXT,
) -> None:
    """Check the config: per field what is wrong and what to do."""
    path = config_path(config, config_option)
    settings, problems = check_config(path)
    answers = list(_answers(settings)) if settings is not None and connect else []
    if output is OutputFormat.JSON:
        write_json(_report(path, problems, answers))
    else:
        _show(path, problems, answers)
    if problems:
        raise typer.Exit(exits.USAGE)
    if not all(answer.ok for answer in answers):
        raise typer.Exit(exits.FAILED)


def _report(path: Path, problems: list[Problem], answers: list[Answer]) -> dict[str, Any]:
    return {
        "config": str(path),
        "ok": not problems and all(answer.ok for answer in answers),
        "problems": [problem._asdict() for problem in problems],
        "connections": [answer._asdict() for answer in answers],
    }


def _show(path: Path, problems: list[Problem], answers: list[Answer]) -> None:
    if problems:
        count = "1 setting is wrong" if len(problems) == 1 else f"{len(problems)} settings are wrong"
        typer.echo(f"{path}: {count}", err=True)
        for problem in problems:
            typer.echo(f"  {problem.field}\n    {problem.reason}\n    -> {problem.remedy}", err=True)
        return
    typer.echo(f"{path}: every setting is right")
    for answer in answers:
        typer.echo(f"{answer.part}: {'ok' if answer.ok else 'FAILED'}, {answer.detail}", err=not answer.ok)


def _answers(config: Config) -> Iterator[Answer]:
    checks: tuple[tuple[str, Callable[[Config], str]], ...] = (
        ("kafka", _kafka),
        ("registry", _registry),
        ("state store", _state_store),
        ("target", _target),
        ("dead letters", _dead_letters),
    )
    needless = {
        "registry": config.source.schema_registry is None,
        "dead letters": config.dead_letters.topic is None,
    }
    for part, check in checks:
        if needless.get(part):
            continue
        try:
            yield Answer(part, True, check(config))
        except TidesinkError as error:
            yield Answer(part, False, error_block(error).strip())


def _kafka(config: Config) -> str:
    from tidesink.cli.kafka import topic_names

    topics = topic_names(config.source.confluent_properties())
    missing = [topic for topic in config.fixed_topics if topic not in topics]
    if missing:
        raise ConfigError(f"the broker has no topic {', '.join(missing)}: is it spelt as in the changefeed?")
    read = config.topics_among(topics)
    if not read:
        return f"{len(topics)} topics, none fits {', '.join(config.source.topics)} yet"
    return f"{len(read)} of {len(topics)} topics are read: {', '.join(read[:5])}{', …' if read[5:] else ''}"


def _registry(config: Config) -> str:
    registry = config.source.open_registry()
    try:
        return f"{len(registry.subjects())} subjects"
    except SchemaNotFoundError as error:
        raise ConfigError(f"this is no Confluent-compatible registry: {error.message}") from error
    finally:
        registry.close()


def _state_store(config: Config) -> str:
    from tidesink.sinks.state_store import open_state_store

    store = open_state_store(config.state)
    try:
        return f"{len(store.statuses(config.pipeline))} tables known"
    finally:
        store.close()


def _dead_letters(config: Config) -> str:
    from tidesink.sinks.kafka.letter_store import check_topic, dead_letters_of

    topic = dead_letters_of(config).topic
    return f"{topic.place} {'is there' if check_topic(topic) else 'is made when the first letter comes'}"


def _target(config: Config) -> str:
    from tidesink.sinks.targets import target_module

    return target_module(config.target).try_target(config.target)
