"""Loads a Config from a YAML file, reports all its problems at once, and makes the config's JSON Schema.

The JSON Schema is for editors and other programs. A registry's settings can also be loaded from a separate
file, for commands that need no pipeline.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import SecretStr, ValidationError

from tidesink.config.checks import cross_problems
from tidesink.config.fields import Interpolated, Problem, place_of, problems_of, shown_seconds
from tidesink.config.models import Config
from tidesink.config.source import RegistrySettings, kafka_problems, registry_section
from tidesink.errors import ConfigError

# A small file may expand to a large one by YAML aliases. A real config has at most some thousands of values.
_MOST_VALUES: Final = 200_000


class _UniqueKeys(yaml.SafeLoader):
    """YAML's safe loader, except that a repeated key is an error instead of replacing the first value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise yaml.MarkedYAMLError(problem=f"{key} is given twice", problem_mark=key_node.start_mark)
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (AttributeError, KeyError, ValueError) as error:  # a text that does not fit its tag
            what = "the value looks like a date or a number but is not valid: put it in quotes"
            raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark) from error

    def get_single_data(self) -> Any:
        node = self.get_single_node()
        if node is not None:
            _check_size(node, {}, set())
            return self.construct_document(node)
        return None


def _check_size(node: yaml.Node, sizes: dict[yaml.Node, int], around: set[yaml.Node]) -> int:
    """Return the number of values in a YAML node, with its aliases expanded.

    Raises:
        MarkedYAMLError: the node contains itself, or has too many values.
    """
    if node in around:
        raise yaml.MarkedYAMLError(problem="an anchor is used inside itself", problem_mark=node.start_mark)
    if node not in sizes:
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        below = itertools.chain.from_iterable(parts) if isinstance(node, yaml.MappingNode) else parts
        sizes[node] = 1 + sum(_check_size(child, sizes, {*around, node}) for child in below)
    if sizes[node] > _MOST_VALUES:
        what = f"its aliases expand to more than {_MOST_VALUES:,} values"
        raise yaml.MarkedYAMLError(problem=what, problem_mark=node.start_mark)
    return sizes[node]


def load_config(path: str | Path) -> Config:
    """Load the config from a file, with references such as ``${env:NAME}`` replaced by their values.

    Raises:
        ConfigError: the file cannot be read, or settings are wrong; the message lists all of them.
    """
    config, problems = check_config(path)
    if config is None or problems:
        raise ConfigError(_listing(path, problems), file=str(path))
    return config


def check_config(path: str | Path) -> tuple[Config | None, list[Problem]]:
    """Load the config from a file. Returns the config, or None and all problems if settings are wrong.

    Raises:
        ConfigError: the file cannot be read or is not YAML.
    """
    file = Path(path)
    return parse_config(read_yaml(file), base=file.resolve().parent)


def parse_config(
    data: Any, *, base: Path, environment: Mapping[str, str] | None = None
) -> tuple[Config | None, list[Problem]]:
    """Return the config of parsed YAML, or None and all problems if settings are wrong.

    ``base``: folder that relative paths in the config start from. ``environment``: the variables that
    ``${env:NAME}`` refers to; by default those of the process.
    """
    if not isinstance(data, dict):
        return None, [
            Problem("(file)", "is not a section of settings", "run tidesink init to write an example")
        ]
    interpolated = Interpolated(data, base=base, environment=environment)
    config, problems = _validated(interpolated, base)
    return (None if problems else config), problems


def _validated(interpolated: Interpolated, base: Path) -> tuple[Config | None, list[Problem]]:
    data, problems = interpolated.data, list(interpolated.problems)
    # Wrong fields are reported and removed, so that the checks across fields can run on the others.
    for _ in range(2):
        try:
            config = Config.model_validate(data, context={"base": base})
        except ValidationError as error:
            problems += [
                p for p in problems_of(error, Config, hidden=interpolated.places) if not _follows(p, problems)
            ]
            data = _with_placeholders(_without(data, [place_of(detail) for detail in error.errors()]))
        else:
            return config, problems + [p for p in cross_problems(config) if not _follows(p, problems)]
    return None, problems + list(_kafka_problems(interpolated.data))


def _kafka_problems(data: dict[str, Any]) -> Iterator[Problem]:
    """Yield the problems of the Kafka client properties in a config whose other settings may be wrong."""
    source = data.get("source")
    properties = source.get("kafka") if isinstance(source, dict) else None
    if isinstance(properties, dict):
        yield from kafka_problems({str(name): SecretStr(str(value)) for name, value in properties.items()})


def _follows(problem: Problem, before: list[Problem]) -> bool:
    """Return True if a problem is only a consequence of a wrong field that ``before`` already reports."""
    return any(f"{earlier.field}.".startswith(f"{problem.field}.") for earlier in before)


def _without(data: Any, places: list[tuple[int | str, ...]]) -> Any:
    removed = {path[: _depth(data, path)] for path in places}

    def copy(part: Any, path: tuple[int | str, ...]) -> Any:
        if isinstance(part, dict):
            members = ((name, value) for name, value in part.items() if (*path, name) not in removed)
            return {name: copy(value, (*path, name)) for name, value in members}
        if isinstance(part, list):
            kept_items = ((i, value) for i, value in enumerate(part) if (*path, i) not in removed)
            return [copy(value, (*path, i)) for i, value in kept_items]
        return part

    return copy(data, ())


def _with_placeholders(data: dict[str, Any]) -> dict[str, Any]:
    source = data.get("source")
    if isinstance(source, dict):
        data = {**data, "source": {"brokers": "127.0.0.1:9092", **source}}
    return {"pipeline": "pipeline", "target": {"path": "lake"}, **data}


def _depth(data: Any, path: tuple[int | str, ...]) -> int:
    """Return how many parts of a setting's place, counted from the first part, exist in the data."""
    for depth, part in enumerate(path):
        exists = part in data if isinstance(data, dict) else isinstance(data, list) and isinstance(part, int)
        if not exists:
            return depth
        data = data[part]
    return len(path)


def read_yaml(file: Path) -> Any:
    """Load a YAML file. Raises ConfigError if the file cannot be read, or is not YAML."""
    try:
        return yaml.load(file.read_text(encoding="utf-8"), Loader=_UniqueKeys)  # noqa: S506 (a SafeLoader)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}. tidesink init writes one", file=str(file)
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError("is not UTF-8 text", file=str(file)) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        location = f" in line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        # Without a cause, since PyYAML's traceback would show the line, which may contain a password.
        raise ConfigError(f"is not YAML{location}: {_explained(error)}", file=str(file)) from None
    except yaml.reader.ReaderError as error:
        what = f"character {error.position + 1} has the code {error.character}, which is not allowed"
        raise ConfigError(f"is not YAML: {what}", file=str(file)) from error
    except RecursionError as error:
        raise ConfigError("is not a config: the values are nested too deeply", file=str(file)) from error


def _explained(error: yaml.MarkedYAMLError) -> str:
    """Return PyYAML's description of an error without quoted parts of the file, which may be a password."""
    for words, sign in (("alias", "*"), ("tag", "!")):
        if f"{words} '" in str(error.problem):
            return f"there is no such {words}; a text that begins with {sign} must be in quotes"
    return str(error.problem)


def _listing(path: str | Path, problems: list[Problem]) -> str:
    count = "1 setting is wrong" if len(problems) == 1 else f"{len(problems)} settings are wrong"
    return "\n".join([f"{count} in {Path(path).name}", *(f"  {problem}" for problem in problems)])


def load_registry_settings(path: str | Path) -> RegistrySettings:
    """Load a registry's settings from a YAML file. It has the same settings as ``source.schema-registry``.

    Raises:
        ConfigError: the file cannot be read, or settings are wrong; the message lists all of them.
    """
    file = Path(path)
    interpolated = Interpolated(read_yaml(file), base=file.resolve().parent)
    problems = list(interpolated.problems)
    settings = _validated_registry(interpolated, file, problems)
    if settings is None or problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        raise ConfigError(f"Settings in the registry's file are wrong:\n{listed}", file=str(file))
    return settings


def _validated_registry(
    interpolated: Interpolated, file: Path, problems: list[Problem]
) -> RegistrySettings | None:
    data = interpolated.data
    if not isinstance(data, dict):
        problems.append(Problem("(file)", "is not a section of settings", "write urls: http://host:port"))
        return None
    context = {"base": file.resolve().parent}
    try:
        settings = RegistrySettings.model_validate(registry_section(data), context=context)
    except ValidationError as error:
        problems += problems_of(error, RegistrySettings, hidden=interpolated.places)
        return None
    return settings


# Any value may be a reference, which is replaced before the value is checked.
_REFERENCE = {"type": "string", "pattern": r"\$\{(env|file):[^}]+\}"}
_NO_TEXT = frozenset({"boolean", "integer", "number"})


def config_schema() -> dict[str, Any]:
    """Return the config's JSON Schema (draft 2020-12). It checks less than ``tidesink validate``."""
    schema = _plain(Config.model_json_schema())
    registry = schema["$defs"]["RegistrySettings"]
    registry["properties"]["url"] = registry["properties"]["urls"]
    registry["oneOf"] = [{"required": ["urls"]}, {"required": ["url"]}]
    del registry["required"]
    target = schema["properties"]["target"]
    target["anyOf"] = target.pop("oneOf")  # a reference as ``type`` matches every target
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "tidesink pipeline",
    }


def _plain(part: Any) -> Any:
    """Return a part of pydantic's JSON Schema without titles and Python markup.

    Patterns are anchored (``^…$``), and every value may also be a reference such as ``${env:NAME}``.
    """
    if isinstance(part, list):
        return [_plain(item) for item in part]
    if not isinstance(part, dict):
        return part
    schema = {name: _member(name, value) for name, value in part.items() if name != "title"}
    if isinstance(schema.get("default"), float):
        schema["default"] = shown_seconds(schema["default"])  # all defaults of this form are durations
    if isinstance(schema.get("description"), str):
        schema["description"] = schema["description"].replace("``", "`").replace("\n", " ")
    if isinstance(schema.get("pattern"), str) and not schema["pattern"].startswith(("^", r"\$")):
        schema["pattern"] = f"^{schema['pattern']}$"
    if schema.get("type") not in _NO_TEXT and not schema.keys() & {"const", "enum", "pattern"}:
        return schema
    outside: dict[str, Any] = {
        name: schema.pop(name) for name in ("description", "default") if name in schema
    }
    return {**outside, "anyOf": [schema, _REFERENCE]}


def _member(name: str, value: Any) -> Any:
    # The names in these members are those of settings, which may be called type or title.
    if name in ("properties", "$defs"):
        return {own: _plain(schema) for own, schema in value.items()}
    return _plain(value)
