"""Parts of the config that ``tidesink init`` writes: comments, the target's section, and topic rules."""

from __future__ import annotations

import math
import socket
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from enum import Enum
from functools import partial
from types import MappingProxyType
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import yaml

from tidesink.config.targets import S3_SCHEMES, scheme_of, type_of_url
from tidesink.errors import ConfigError, SourceUnavailableError
from tidesink.schema_registry.naming import TopicRule

TARGET_VARIABLE: Final = "TARGET_PASSWORD"


class TargetType(str, Enum):
    """The types of targets that ``tidesink init`` can configure."""

    DELTA = "delta"
    ICEBERG = "iceberg"
    POSTGRES = "postgres"
    MYSQL = "mysql"
    KAFKA = "kafka"
    HTTP = "http"


class Words(NamedTuple):
    """Texts about a producer (TiCDC or Debezium) for the config template.

    ``rule``: example of a topic rule, for a config that is written while no broker answers.
    """

    origin: str
    names: str
    rules: str
    zone: str
    keys: str
    rule: str


_TICDC: Final = Words(
    "the topics of a TiCDC changefeed",
    "Settings under `source` have TiCDC's names. Copy their values from the changefeed's sink URI.",
    "The topic rule of the changefeed's dispatchers, or a list of topics.",
    "The changefeed's time zone. TIMESTAMP values in the topics have no zone.",
    "if neither a key record nor pkNames has them",
    "{schema}_{table}",
)
_FLAT_AVRO: Final = _TICDC._replace(
    rules="The topic rule of the changefeed's dispatchers. For a topic given by name, list its table below: "
    "{name: shop.orders, topic: NAME}."
)
_DEBEZIUM: Final = Words(
    "the topics of a Debezium connector",
    "Under `source`, give the connector's topics, and the protocol that its converter writes.",
    "The connector's topics: <topic.prefix>.<database or schema>.<table>, as a rule or as a list.",
    "The time zone of TIMESTAMP values that have none. Connectors write a zone, so keep UTC.",
    "if the records have no key",
    "server1.{schema}.{table}",
)


def words_of(protocol: str) -> Words:
    """Return the template's texts about the producer of a protocol."""
    if protocol.startswith("debezium"):
        return _DEBEZIUM
    return _FLAT_AVRO if protocol == "flat-avro" else _TICDC


class Target(NamedTuple):
    """The config's ``target`` section: its lines, a description of the tables, and notes for the user."""

    lines: str
    called: str
    notes: tuple[str, ...] = ()


def target_section(target: str | None, kind: TargetType | None) -> Target:
    """Return the config section of a target.

    ``target``: path or URL, or None for an example. ``kind``: the target's type; if None, the URL's scheme
    determines it.

    Raises:
        ConfigError: ``target`` does not fit the type.
    """
    named = type_of_url(target) if target is not None else None
    chosen = kind or TargetType(named or "delta")
    wanted = {TargetType.ICEBERG: ("http", None), TargetType.DELTA: (None,)}.get(chosen, (chosen.value,))
    if target is not None and named not in wanted:
        hint = f"--target-type {named}" if named else f"a URL such as {_TEMPLATES[chosen].example}"
        raise ConfigError(f"--target does not name a target of type {chosen.value}. Give {hint}.")
    template = _TEMPLATES[chosen]
    lines, notes = template.section(target or template.example)
    return Target(f"  type: {chosen.value}\n{lines}", template.called, tuple(notes))


_Section = tuple[str, Sequence[str]]


class _Template(NamedTuple):
    """How to write the config section of a type of target.

    ``called``: a description of the tables.
    ``example``: the path or URL in a config for which ``--target`` was not given.
    ``section``: returns the lines for a path or URL, and notes for the user.
    """

    called: str
    example: str
    section: Callable[[str], _Section]


_ON_S3: Final = (
    "  # With true, you promise that only one worker, and no other program, writes here. Otherwise remove\n"
    "  # it, and set a log store that excludes other writers (docs/targets-delta.md).\n"
    "  single-writer: true\n"
)


def _delta(path: str) -> _Section:
    is_on_s3 = scheme_of(path) in S3_SCHEMES
    notes = ["the lake is on S3. Read the comment above target.single-writer"] if is_on_s3 else []
    table = '  table: "{schema}/{table}"\n'
    return f"  path: {_scalar(path)}\n{table}{_ON_S3 if is_on_s3 else ''}", notes


def _iceberg(location: str) -> _Section:
    """Return the section of an Iceberg target.

    A folder gets a Hadoop catalog, an HTTP URL is used as a REST catalog, and a bucket gets a REST catalog
    whose address the user fills in.
    """
    notes = list[str]()
    if "://" not in location:
        kind, properties = "hadoop", {"warehouse": location}
    elif type_of_url(location) == "http":
        kind, properties = "rest", {"uri": location}
    else:
        kind, properties = "rest", {"uri": "https://catalog.example.com", "warehouse": location}
        notes.append("write the address of your catalog into target.catalog-properties.uri")
    others = ", ".join(
        catalog for catalog in ("hadoop", "rest", "hive", "glue", "jdbc", "nessie") if catalog != kind
    )
    lines = "".join(f"    {name}: {_scalar(value)}\n" for name, value in properties.items())
    return (
        f"  catalog: lake\n  catalog-properties:\n    type: {kind}    # or {others}\n{lines}"
        '  table: "{schema}.{table}"\n'
    ), notes


def _database(scheme: str, url: str) -> _Section:
    parts = urlsplit(url)
    bare = parts._replace(scheme=scheme, netloc=_host(parts), query="")
    reference = f"${{env:{TARGET_VARIABLE}}}"
    password = f"  password: {reference}\n" if parts.password else f"  # password: {reference}\n"
    notes = [f"set {TARGET_VARIABLE} to the password of the target's user"] if parts.password else []
    if parts.query:
        notes.append("the options in the target's URL were not copied. Set TLS under target.tls")
    user = _scalar(unquote(parts.username or "tidesink"))
    return (
        f"  url: {_scalar(bare.geturl())}\n  user: {user}\n{password}"
        '  table: "{schema}.{table}"\n'
        "  # tls:\n  #   mode: verify-full\n  #   ca: ca.pem\n"
    ), notes


def _kafka(url: str) -> _Section:
    brokers = _host(urlsplit(url))
    return (
        f"  brokers: {_scalar(brokers)}\n"
        "  # If these are the source's brokers, this rule must not match a topic of source.topics.\n"
        '  topic: "copy.{schema}.{table}"\n'
        "  protocol: canal-json     # flat-avro and debezium-avro need schema-registry\n"
    ), ()


def _http(url: str) -> _Section:
    parts = urlsplit(url)
    notes = (
        ["user and password were not copied from the URL. Set them under target.auth"]
        if parts.username
        else []
    )
    return f"  url: {_scalar(parts._replace(netloc=_host(parts)).geturl())}\n  format: json-lines\n", notes


_TEMPLATES: Final[Mapping[TargetType, _Template]] = MappingProxyType(
    {
        TargetType.DELTA: _Template("Delta tables in a lake", "./lake", _delta),
        TargetType.ICEBERG: _Template("Iceberg tables in a catalog", "./ice", _iceberg),
        TargetType.POSTGRES: _Template(
            "tables in a Postgres database",
            "postgresql://db.example.com:5432/shop",
            partial(_database, "postgresql"),
        ),
        TargetType.MYSQL: _Template(
            "tables in a MySQL or MariaDB server", "mysql://db.example.com:3306", partial(_database, "mysql")
        ),
        TargetType.KAFKA: _Template("messages in Kafka topics", "kafka://copies.example.com:9092", _kafka),
        TargetType.HTTP: _Template(
            "requests to an HTTP endpoint", "https://api.example.com/changes/{schema}/{table}", _http
        ),
    }
)


def _host(parts: SplitResult) -> str:
    return parts.netloc.rpartition("@")[2]


def _scalar(text: str) -> str:
    """Return a text as YAML on one line."""
    scalar: str = yaml.safe_dump(text, default_flow_style=True, allow_unicode=True, width=math.inf)
    return scalar.removesuffix("...\n").rstrip("\n")


# Time limit for a port that may be closed, and number of topics that are listed.
_PROBE_SECONDS: Final = 1.0
_LISTED: Final = 20


class Topics(NamedTuple):
    """Topic rules for the config, the comment above them, and notes to print for the user."""

    rules: tuple[str, ...]
    comment: str = ""
    notes: tuple[str, ...] = ()


def found_topics(brokers: str, protocol: str) -> Topics:
    """Return topic rules that fit the brokers' topics, or an example if no broker answers within a second."""
    from tidesink.cli.sources import topic_names

    rule = words_of(protocol).rule
    is_guess = f"{rule} is an example. Replace server1 in source.topics by the connector's topic.prefix"
    is_debezium = protocol.startswith("debezium")
    guess = (is_guess,) if is_debezium else ()
    if not any(map(_answers, brokers.split(","))):
        return Topics((rule,), notes=guess)
    try:
        names = topic_names({"bootstrap.servers": brokers})
    except SourceUnavailableError:
        return Topics((rule,), notes=guess)
    return topics_of(names, protocol) or Topics((rule,), notes=guess)


def topics_of(names: Iterable[str], protocol: str) -> Topics | None:
    """Return topic rules for a broker's topics, with a comment that lists the topics; None without topics."""
    own = sorted(name for name in names if not name.startswith(("__", "_")))
    if not own:
        return None
    comment = f"  # The brokers have: {', '.join(own[:_LISTED])}{', …' if own[_LISTED:] else ''}\n"
    if not protocol.startswith("debezium"):
        return Topics((words_of(protocol).rule,), comment)
    topics = _topics_by_prefix(own)
    if not topics:
        note = (
            "no topic is named PREFIX.SCHEMA.TABLE. Replace server1 in source.topics by the connector's "
            "topic.prefix"
        )
        return Topics((_DEBEZIUM.rule,), comment, (note,))
    prefixes, left_out = _apart(topics)
    unread = {name for prefix in left_out for name in topics[prefix].values()}
    rules = tuple(rule for prefix in prefixes for rule in _rules(prefix, topics[prefix], unread))
    notes = tuple(_LEFT_OUT.format(_rule(prefix), *shared) for prefix, shared in left_out.items())
    return Topics(rules, comment + "".join(f"  # {note[0].upper()}{note[1:]}.\n" for note in notes), notes)


_LEFT_OUT: Final = (
    "{} is not in source.topics, because {} and {} are topics of the same table. Read them with a second "
    "config, which writes elsewhere in the target"
)


def _topics_by_prefix(topics: Iterable[str]) -> dict[str, dict[tuple[str, str], str]]:
    """Return the topics that are named ``PREFIX.SCHEMA.TABLE``, by prefix and table."""
    found = defaultdict[str, dict[tuple[str, str], str]](dict)
    for name in topics:
        parts = name.split(".")
        if len(parts) > 2 and all(parts):
            found[".".join(parts[:-2])][parts[-2], parts[-1]] = name
    return dict(found)


def _apart(
    topics: Mapping[str, Mapping[tuple[str, str], str]],
) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Divide prefixes so that no table has topics of two of them: a worker refuses such a table.

    Prefixes with more topics are preferred.

    Returns:
        The prefixes to read, and by each other prefix an example: a topic that is read, and its own topic
        of the same table.
    """
    read: dict[tuple[str, str], str] = {}
    prefixes, left_out = [], {}
    for prefix in sorted(topics, key=lambda prefix: (-len(topics[prefix]), prefix)):
        shared = sorted(topics[prefix].keys() & read.keys())
        if shared:
            left_out[prefix] = read[shared[0]], topics[prefix][shared[0]]
        else:
            prefixes.append(prefix)
            read |= topics[prefix]
    return sorted(prefixes), left_out


def _rule(prefix: str) -> str:
    return f"{prefix}.{{schema}}.{{table}}"


def _rules(prefix: str, topics: Mapping[tuple[str, str], str], unread: Collection[str]) -> Iterable[str]:
    """Return a prefix's rule; or the names of its topics, if the rule also matches an ``unread`` topic."""
    rule = TopicRule.parse(_rule(prefix))
    return topics.values() if any(map(rule.matches, unread)) else (rule.text,)


def _answers(broker: str) -> bool:
    host, _, port = broker.strip().rpartition(":")
    try:
        with closing(socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_SECONDS)):
            return True
    except (OSError, ValueError):
        return False
