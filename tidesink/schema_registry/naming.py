"""Names of a table's topic, subjects and Avro record.

The rules are TiCDC's (tiflow c7b2588; the new architecture, b813e76, has the same). All three conversions
lose information: a topic, a subject and an Avro name cannot be converted back to the table's name with
certainty, so :meth:`TopicRule.table_of` refuses to guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tidesink.errors import ConfigError
from tidesink.events import TableId

SubjectPart = Literal["key", "value"]

# Kafka's limit for the length of a topic's name.
MAX_TOPIC_LENGTH = 249

_NOT_IN_TOPIC = re.compile(r"[^A-Za-z0-9._-]")
_NOT_IN_AVRO_NAME = re.compile(r"[^A-Za-z0-9_]")
_TEXT = r"[A-Za-z0-9._-]*"
_EXPRESSION = re.compile(
    rf"(?P<prefix>{_TEXT})(?P<schema>\{{schema\}})?(?P<middle>{_TEXT})(?P<table>\{{table\}})?(?P<suffix>{_TEXT})"
)
# Names that Kafka refuses, and TiCDC's replacements.
_RESERVED_TOPICS = {".": "_", "..": "__"}


def subject(topic: str, part: SubjectPart) -> str:
    """Returns the subject of a topic's key or value: TopicNameStrategy with ``.`` replaced by ``_``."""
    return f"{topic.replace('.', '_')}-{part}"


def sanitize_name(name: str) -> str:
    """Returns the Avro name of a table, a column or one part of a namespace.

    Each code point outside ``[A-Za-z0-9_]`` becomes one ``_``; a leading digit gets a ``_`` prefix.
    """
    cleaned = _NOT_IN_AVRO_NAME.sub("_", name)
    return f"_{cleaned}" if "0" <= cleaned[:1] <= "9" else cleaned


def sanitize_namespace(namespace: str, schema: str) -> str:
    """Returns the Avro namespace of a table: the changefeed's namespace (or keyspace), and the database."""
    return f"{sanitize_name(namespace)}.{sanitize_name(schema)}"


def _topic_name(text: str) -> str:
    cut = text[:MAX_TOPIC_LENGTH]
    return _RESERVED_TOPICS.get(cut, cut)


def _in_topic(name: str) -> str:
    return _NOT_IN_TOPIC.sub("_", name)


@dataclass(frozen=True)
class TopicRule:
    """Maps tables to topics: ``[prefix]{schema}[middle]{table}[suffix]`` or a fixed name.

    This is TiCDC's ``dispatchers`` syntax: the placeholders in that order, each of them optional, and other
    text of ``[A-Za-z0-9._-]``.
    """

    text: str
    prefix: str
    middle: str
    suffix: str
    has_schema: bool
    has_table: bool

    @classmethod
    def parse(cls, text: str) -> TopicRule:
        """Parses a rule; raises :class:`ConfigError` if TiCDC would refuse it, or Kafka the topic."""
        found = _EXPRESSION.fullmatch(text)
        if found is None or not text:
            raise ConfigError(
                f"{text!r} is not a topic rule. Use [prefix]{{schema}}[middle]{{table}}[suffix] or a topic's "
                "name: the placeholders in that order, and other text of A-Z a-z 0-9 . _ -"
            )
        parts = found.groupdict()
        rule = cls(
            text=text,
            prefix=parts["prefix"],
            middle=parts["middle"],
            suffix=parts["suffix"],
            has_schema=parts["schema"] is not None,
            has_table=parts["table"] is not None,
        )
        if rule.is_fixed and _topic_name(text) != text:
            raise ConfigError(
                f"Kafka does not accept a topic named {text!r}: use up to {MAX_TOPIC_LENGTH} characters, "
                "not '.' or '..'"
            )
        return rule

    @property
    def is_fixed(self) -> bool:
        """True if all tables share one topic."""
        return not (self.has_schema or self.has_table)

    @property
    def names_tables(self) -> bool:
        """True if both placeholders are used, so that each table has its own topic."""
        return self.has_schema and self.has_table

    def topic_for(self, table: TableId) -> str:
        """Returns the topic of a table, sanitized and cut at 249 characters as in TiCDC."""
        schema = _in_topic(table.schema) if self.has_schema else ""
        name = _in_topic(table.name) if self.has_table else ""
        return _topic_name(f"{self.prefix}{schema}{self.middle}{name}{self.suffix}")

    def matches(self, topic: str) -> bool:
        """Returns True if some table could have this topic."""
        if self.is_fixed:
            return topic == self.text
        if len(topic) == MAX_TOPIC_LENGTH and topic.startswith(self.prefix[:MAX_TOPIC_LENGTH]):
            return True  # the text after the cut is unknown
        return self._pattern().fullmatch(topic) is not None

    def candidates(self, topic: str) -> tuple[TableId, ...]:
        """Returns all splits of a topic into schema and table; empty unless the rule has both placeholders.

        The names are sanitized: ``a$b`` is returned as ``a_b``.
        """
        outside = len(self.prefix) + len(self.suffix)
        if not self.names_tables or not self.matches(topic) or len(topic) < outside:
            return ()
        body = topic[len(self.prefix) : len(topic) - len(self.suffix)]
        width = len(self.middle)
        return tuple(
            TableId(body[:at], body[at + width :])
            for at in range(1, len(body) - width)
            if body.startswith(self.middle, at)
        )

    def table_of(self, topic: str, known_tables: Iterable[TableId] = ()) -> TableId:
        """Returns the only table of a topic: a known table with this topic, or else the only possible split.

        Raises :class:`ConfigError` if no table, or more than one, could have the topic.
        """
        known = [table for table in dict.fromkeys(known_tables) if self.topic_for(table) == topic]
        if len(known) > 1:
            raise ConfigError(self._shared(topic, known))
        if known:
            return known[0]
        found = self.candidates(topic)
        if len(found) == 1 and len(topic) < MAX_TOPIC_LENGTH:
            return found[0]
        raise ConfigError(f"{self._why_unknown(topic, found)}. List the table in `tables:`.")

    def _shared(self, topic: str, tables: list[TableId]) -> str:
        names = " and ".join(str(table) for table in tables)
        if self.is_fixed:
            return f"the fixed topic {topic!r} must have exactly one table, but {names} are configured for it"
        return f"the rule {self.text!r} makes the tables {names} share the topic {topic!r}"

    def _why_unknown(self, topic: str, found: tuple[TableId, ...]) -> str:
        if not self.matches(topic):
            return f"topic {topic!r} does not match the rule {self.text!r}"
        if not self.names_tables:
            return f"the rule {self.text!r} does not determine the table of topic {topic!r}"
        if len(topic) >= MAX_TOPIC_LENGTH:
            return f"topic {topic!r} is cut at {MAX_TOPIC_LENGTH} characters"
        shown = ", ".join(str(table) for table in found[:3]) + (", …" if found[3:] else "")
        return f"by the rule {self.text!r} topic {topic!r} can be any of {len(found)} tables ({shown})"

    def _pattern(self) -> re.Pattern[str]:
        name = "[A-Za-z0-9._-]+"
        parts = (
            re.escape(self.prefix),
            name if self.has_schema else "",
            re.escape(self.middle),
            name if self.has_table else "",
            re.escape(self.suffix),
        )
        return re.compile("".join(parts))
