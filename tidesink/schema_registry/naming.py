"""Names of a table's topic, subjects and Avro record.

The rules are TiCDC's (tiflow c7b2588; the new architecture, b813e76, has the same rules). Each conversion
loses information: a topic, a subject or an Avro name cannot always be converted back to the table's name. So
``TopicRule.table_of`` raises an error if a topic's name is ambiguous.
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
# Topic names that Kafka refuses, with the names that TiCDC uses in their place.
_RESERVED_TOPICS = {".": "_", "..": "__"}


def subject(topic: str, part: SubjectPart) -> str:
    """Returns the subject of a topic's keys or values: the topic with ``.`` replaced by ``_``, then ``-key``
    or ``-value``.
    """
    return f"{topic.replace('.', '_')}-{part}"


def sanitize_name(name: str) -> str:
    """Returns the Avro name of a table, a column or a part of a namespace.

    Each code point outside ``[A-Za-z0-9_]`` becomes one ``_``. A leading digit gets a ``_`` before it.
    """
    cleaned = _NOT_IN_AVRO_NAME.sub("_", name)
    return f"_{cleaned}" if "0" <= cleaned[:1] <= "9" else cleaned


def sanitize_namespace(namespace: str, schema: str) -> str:
    """Returns the Avro namespace of a table: the changefeed's namespace (or keyspace), a dot, and the table's
    database.
    """
    return f"{sanitize_name(namespace)}.{sanitize_name(schema)}"


def _topic_name(text: str) -> str:
    cut = text[:MAX_TOPIC_LENGTH]
    return _RESERVED_TOPICS.get(cut, cut)


def _in_topic(name: str) -> str:
    return _NOT_IN_TOPIC.sub("_", name)


@dataclass(frozen=True)
class TopicRule:
    """A rule for the topics of tables: ``[prefix]{schema}[middle]{table}[suffix]`` or a fixed name.

    This is TiCDC's ``dispatchers`` syntax. Both placeholders are optional, but their order is fixed. All
    other text must be of ``[A-Za-z0-9._-]``.
    """

    text: str
    prefix: str
    middle: str
    suffix: str
    has_schema: bool
    has_table: bool

    @classmethod
    def parse(cls, text: str) -> TopicRule:
        """Parse a topic rule.

        Raises:
            ConfigError: TiCDC would refuse the rule, or Kafka would refuse the topic.
        """
        match = _EXPRESSION.fullmatch(text)
        if match is None or not text:
            raise ConfigError(
                f"{text!r} is not a topic rule. Use [prefix]{{schema}}[middle]{{table}}[suffix] or the name "
                "of a topic. The placeholders must be in that order. Other text may only contain A-Z a-z "
                "0-9 . _ and -."
            )
        parts = match.groupdict()
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
                f"Kafka does not accept a topic named {text!r}. Use up to {MAX_TOPIC_LENGTH} characters, "
                "and not '.' or '..'."
            )
        return rule

    @property
    def is_fixed(self) -> bool:
        """True if all tables share one topic."""
        return not (self.has_schema or self.has_table)

    @property
    def names_tables(self) -> bool:
        """True if the rule has both placeholders, so that each table has its own topic."""
        return self.has_schema and self.has_table

    def topic_for(self, table: TableId) -> str:
        """Returns the topic of a table.

        As in TiCDC, characters that a topic cannot have are replaced by ``_``, and the name is cut at 249
        characters.
        """
        schema = _in_topic(table.schema) if self.has_schema else ""
        name = _in_topic(table.name) if self.has_table else ""
        return _topic_name(f"{self.prefix}{schema}{self.middle}{name}{self.suffix}")

    def matches(self, topic: str) -> bool:
        """Returns True if a table could have this topic under the rule."""
        if self.is_fixed:
            return topic == self.text
        if len(topic) == MAX_TOPIC_LENGTH and topic.startswith(self.prefix[:MAX_TOPIC_LENGTH]):
            return True  # the text after the cut is unknown
        return self._pattern().fullmatch(topic) is not None

    def candidates(self, topic: str) -> tuple[TableId, ...]:
        """Returns all tables that a topic's name could belong to. Returns nothing unless the rule has both
        placeholders.

        In the returned names, characters that a topic cannot have are replaced: table ``a$b`` is returned as
        ``a_b``.
        """
        outside = len(self.prefix) + len(self.suffix)
        if not self.names_tables or not self.matches(topic) or len(topic) < outside:
            return ()
        body = topic[len(self.prefix) : len(topic) - len(self.suffix)]
        width = len(self.middle)
        return tuple(
            TableId(body[:position], body[position + width :])
            for position in range(1, len(body) - width)
            if body.startswith(self.middle, position)
        )

    def table_of(self, topic: str, known_tables: Iterable[TableId] = ()) -> TableId:
        """Returns the table of a topic: the known table with this topic, or else the only possible table.

        Raises:
            ConfigError: No table, or more than one table, could have the topic.
        """
        tables = [table for table in dict.fromkeys(known_tables) if self.topic_for(table) == topic]
        if len(tables) > 1:
            raise ConfigError(self._shared(topic, tables))
        if tables:
            return tables[0]
        candidates = self.candidates(topic)
        if len(candidates) == 1 and len(topic) < MAX_TOPIC_LENGTH:
            return candidates[0]
        raise ConfigError(f"{self._why_unknown(topic, candidates)}. List the table in `tables:`.")

    def _shared(self, topic: str, tables: list[TableId]) -> str:
        names = " and ".join(str(table) for table in tables)
        if self.is_fixed:
            return (
                f"The fixed topic {topic!r} can only have one table, but tables {names} are configured for "
                "it. Have the changefeed write each table to its own topic, and change the topic rule "
                "accordingly."
            )
        return (
            f"The topic rule {self.text!r} gives tables {names} the same topic {topic!r}. Have the "
            "changefeed write each table to its own topic, and change the rule accordingly."
        )

    def _why_unknown(self, topic: str, candidates: tuple[TableId, ...]) -> str:
        if not self.matches(topic):
            return f"Topic {topic!r} does not match the topic rule {self.text!r}"
        if not self.names_tables:
            return f"The topic rule {self.text!r} does not determine the table of topic {topic!r}"
        if len(topic) >= MAX_TOPIC_LENGTH:
            return (
                f"The name of topic {topic!r} was cut at {MAX_TOPIC_LENGTH} characters, so its table is "
                f"not known"
            )
        shown = ", ".join(str(table) for table in candidates[:3]) + (", …" if candidates[3:] else "")
        return (
            f"By the topic rule {self.text!r}, topic {topic!r} could belong to any of {len(candidates)} "
            f"tables ({shown})"
        )

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
