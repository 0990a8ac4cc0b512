"""Golden records that are left out, each with its reason.

A pattern is matched (``*`` and ``?`` alone are special) against a record's name, ``folder/codec/event:line``
followed by its tags. A pattern that matches nothing, neither in the run's vectors nor in our own subset,
fails the run.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple


class Exclusion(NamedTuple):
    """Records by pattern, and why they are left out."""

    pattern: str
    reason: str

    def matches(self, name: str) -> bool:
        """Whether the pattern names this record."""
        shape = re.escape(self.pattern).replace(r"\*", ".*").replace(r"\?", ".")
        return re.fullmatch(shape, name) is not None


EXCLUSIONS: Final = (
    Exclusion(
        "*/avro/* +stale-before-name",
        "a fault of the producer: after RENAME TABLE it goes on with the old record name and cannot write "
        "the before image; we build the schema from the new name and write the row",
    ),
)


def excluded(name: str) -> Exclusion | None:
    """The first exclusion that names a record."""
    return next((one for one in EXCLUSIONS if one.matches(name)), None)
