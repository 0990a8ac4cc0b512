"""Topic rules, as TiCDC's dispatchers spell them: ``[prefix]{schema}[mid]{table}[suffix]``.

Source: TiCDC (tiflow c7b2588). Schema and table characters outside ``[A-Za-z0-9._-]`` become ``_``,
one for each code point; a name is cut at 249; a plain name without braces is one fixed topic.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from tidesink.change import TableId

MAX_TOPIC_LENGTH = 249
_RULE = re.compile(r"([A-Za-z0-9._-]*)(?:(\{schema\})([A-Za-z0-9._-]*))?(?:(\{table\})([A-Za-z0-9._-]*))?")
_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_REFUSED = re.compile(r"[^A-Za-z0-9._-]")
_DOTS = {".": "_", "..": "__"}


def is_topic(name: str) -> bool:
    """Whether Kafka takes this name for a topic."""
    return 0 < len(name) <= MAX_TOPIC_LENGTH and name not in _DOTS and _TOPIC.fullmatch(name) is not None


@dataclass(frozen=True)
class TopicRule:
    """One topic expression. ``text`` is as the user wrote it."""

    text: str

    @property
    def has_schema(self) -> bool:
        """True where the rule holds ``{schema}``."""
        return "{schema}" in self.text

    @property
    def has_table(self) -> bool:
        """True where the rule holds ``{table}``."""
        return "{table}" in self.text

    @property
    def fixed(self) -> bool:
        """True for a plain topic name."""
        return "{" not in self.text and "}" not in self.text

    @property
    def problem(self) -> str | None:
        """What is wrong with the text, or None."""
        if self.fixed:
            return None if is_topic(self.text) else f"{self.text!r} is no Kafka topic name"
        if not self.text or _RULE.fullmatch(self.text) is None:
            return (
                f"invalid topic expression {self.text!r}: TiCDC takes [prefix]{{schema}}[middle]{{table}}"
                "[suffix], each at most once, in this order, with only A-Z a-z 0-9 . _ - around them"
            )
        return None

    def topic(self, table: TableId) -> str:
        """The topic TiCDC writes a table's changes to."""
        name = self.text.replace("{schema}", _REFUSED.sub("_", table.schema))
        name = name.replace("{table}", _REFUSED.sub("_", table.name))
        return _DOTS.get(name, name[:MAX_TOPIC_LENGTH])

    def matches(self, topic: str) -> bool:
        """Whether some table's changes may be in this topic; Kafka's internal topics never match."""
        return not topic.startswith("__") and self._pattern.fullmatch(topic) is not None

    def table(self, topic: str) -> TableId | None:
        """The table of a topic, where the rule can tell: the shortest schema that fits."""
        found = self._pattern.fullmatch(topic)
        if found is None or not (self.has_schema and self.has_table) or topic.startswith("__"):
            return None
        return TableId(found["schema"], found["table"])

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        pattern = re.escape(self.text)
        pattern = pattern.replace(re.escape("{schema}"), r"(?P<schema>[A-Za-z0-9._-]+?)")
        return re.compile(pattern.replace(re.escape("{table}"), r"(?P<table>[A-Za-z0-9._-]+)"))
