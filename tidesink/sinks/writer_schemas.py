"""The writer schemas of one Avro topic, by the registry's ids, and the ids it does not know.

A registry may be a follower that lags behind the producer's, so that "no such id" is an answer of the
moment: it is believed after some seconds, and asked again later.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from tidesink.errors import SchemaNotFoundError
from tidesink.schema_registry import SchemaReader, SubjectPart, subject
from tidesink.sinks.retry import RetryPolicy

Ids = Mapping[SubjectPart, Iterable[int]]

PARTS: Final[tuple[SubjectPart, ...]] = ("key", "value")
# So long an id that the registry does not know is asked for before its records are called bad.
LAG_SECONDS: Final = 5.0
# So long ids called bad are left alone before a batch that meets bad records asks for them again.
ASK_AGAIN_SECONDS: Final = 30.0

_NO_SCHEMA: Final = "schema id {} is unknown to the registry: is it the registry TiCDC writes to?"
_OTHERS_SCHEMA: Final = (
    "schema id {} is of {}, which is no record of this topic's subjects: two tables must not share a topic"
)


def may_lag(error: BaseException) -> bool:
    """Whether a registry that follows another may know better a little later."""
    return isinstance(error, SchemaNotFoundError)


class _Unknown(NamedTuple):
    """Why an id's records are bad, and when it was last asked for."""

    reason: str
    asked: float


class WriterSchemas:
    """What is known of a topic's two subjects. Used by one thread at a time.

    ``lag`` says how long a registry may lag (``may_lag``), ``subject_of`` how subjects are named, and
    ``of_no_table`` which schemas may come beside the table's own. Every method that asks raises RegistryError
    where the registry refuses, or does not answer, and StopRequestedError for a stop while it waits.
    """

    def __init__(
        self,
        registry: SchemaReader,
        topic: str,
        *,
        lag: RetryPolicy,
        clock: Callable[[], float] = time.monotonic,
        subject_of: Callable[[str, SubjectPart], str] = subject,
        of_no_table: Callable[[str], bool] = lambda _text: False,
    ) -> None:
        self._registry = registry
        self._topic = topic
        self._lag = lag
        self._clock = clock
        self._subject_of = subject_of
        self._of_no_table = of_no_table
        self._unknown: dict[tuple[SubjectPart, int], _Unknown] = {}
        self.texts: dict[SubjectPart, dict[int, str]] = {"key": {}, "value": {}}

    @property
    def unknown(self) -> dict[int, str]:
        """Ids that were asked for in vain, each with the reason its records are bad for."""
        return {schema_id: found.reason for (_, schema_id), found in self._unknown.items()}

    def read_subjects(self) -> None:
        """Take every version of the topic's subjects: a column's history wants them all."""
        self._lag.call(self._read_subjects)

    def lacks(self, ids: Ids) -> bool:
        """Whether some of the ids were never looked up."""
        return any(True for _ in self._lacking(ids))

    def look_up(self, ids: Ids) -> None:
        """Know each id, or why its records are bad, after asking for some seconds."""
        try:
            self._lag.call(lambda: self._ask(ids))
        except SchemaNotFoundError:
            for part, schema_id in list(self._lacking(ids)):
                self._refuse(part, schema_id, _NO_SCHEMA.format(schema_id))

    def look_again(self) -> bool:
        """Ask once for the ids called bad a while ago; True where one of them is known by now."""
        late = self._clock() - ASK_AGAIN_SECONDS
        stale = [place for place, found in self._unknown.items() if found.asked <= late]
        if not stale:
            return False
        self.read_subjects()
        for part, schema_id in stale:
            if not self._known(part, schema_id):
                self._refuse(part, schema_id, _NO_SCHEMA.format(schema_id))
        return any(place not in self._unknown for place in stale)

    def _lacking(self, ids: Ids) -> Iterator[tuple[SubjectPart, int]]:
        for part in PARTS:
            for schema_id in ids.get(part, ()):
                if schema_id not in self.texts[part] and (part, schema_id) not in self._unknown:
                    yield part, schema_id

    def _ask(self, ids: Ids) -> None:
        """Ask once for what is lacking; raises SchemaNotFoundError where the registry knows some not."""
        self._read_subjects()
        missing = [(part, one) for part, one in list(self._lacking(ids)) if not self._known(part, one)]
        if missing:
            raise SchemaNotFoundError(
                f"the registry does not know schema ids {sorted({one for _, one in missing})}",
                topic=self._topic,
            )

    def _known(self, part: SubjectPart, schema_id: int) -> bool:
        """Ask for one id; False where the registry does not know it."""
        if schema_id in self.texts[part]:
            return True
        try:
            text = self._registry.schema_by_id(schema_id)
        except SchemaNotFoundError:
            return False
        names = {_full_name(known) for known in self.texts[part].values()}
        if names and _full_name(text) not in names and not self._of_no_table(text):
            self._refuse(part, schema_id, _OTHERS_SCHEMA.format(schema_id, _full_name(text)))
        else:
            self._take(part, schema_id, text)
        return True

    def _read_subjects(self) -> None:
        for part in PARTS:
            self._read_subject(part)

    def _read_subject(self, part: SubjectPart) -> None:
        name = self._subject_of(self._topic, part)
        try:
            versions = self._registry.versions(name)
        except SchemaNotFoundError:
            return
        for version in versions:
            found = self._registry.schema_by_version(name, version)
            self._take(part, found.id, found.schema_text)

    def _take(self, part: SubjectPart, schema_id: int, text: str) -> None:
        self.texts[part][schema_id] = text
        self._unknown.pop((part, schema_id), None)

    def _refuse(self, part: SubjectPart, schema_id: int, reason: str) -> None:
        self._unknown[part, schema_id] = _Unknown(reason, self._clock())


def _full_name(text: str) -> str | None:
    """An Avro record's namespace and name; None for a schema that is no record."""
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return f"{record.get('namespace')}.{record.get('name')}" if isinstance(record, dict) else None
