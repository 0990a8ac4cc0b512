"""Where a table stands in a database, and what tidesink keeps beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from tidesink.events import TableId
from tidesink.sinks.shape import Shard

LEDGER: Final = "_tidesink_ledger"
SHARDS: Final = "_tidesink_shards"
_STAGING: Final = "_tidesink_staging_"


@dataclass(frozen=True)
class Place:
    """One table: ``schema`` is MySQL's database. The quoted names are ``location``, ``ledger``.

    ``shard``: the source table is one of several that share the table; its ledger is a row of ``shards``.
    """

    source: TableId
    schema: str
    name: str
    quote: Callable[[str], str]
    shard: Shard | None = None

    @property
    def location(self) -> str:
        """The table."""
        return self._quoted(self.name)

    @property
    def ledger(self) -> str:
        """The ledger of the table's schema."""
        return self._quoted(LEDGER)

    @property
    def shards(self) -> str:
        """The ledger of the schema's tables that several source tables share."""
        return self._quoted(SHARDS)

    @property
    def own_ledger(self) -> str:
        """The ledger that has the source table's row."""
        return self.shards if self.shard else self.ledger

    @property
    def shown(self) -> str:
        """The table for people to read."""
        return f"{self.schema}.{self.name}"

    @property
    def staging_prefix(self) -> str:
        """What the names of this table's staging tables begin with."""
        own = f"{self.schema}\0{self.name}" + (f"\0{self.shard.value}" if self.shard else "")
        return _STAGING + sha256(own.encode()).hexdigest()[:12] + "_"

    def staging(self, epoch: int) -> str:
        """The staging table of one epoch: a worker that lost the table writes to another."""
        return self._quoted(f"{self.staging_prefix}{epoch}")

    def beside(self, name: str) -> str:
        """The quoted name of another table of the schema."""
        return self._quoted(name)

    def _quoted(self, name: str) -> str:
        return f"{self.quote(self.schema)}.{self.quote(name)}"


def place_in(template: str, table: TableId, quote: Callable[[str], str]) -> Place:
    """The place of a source table under a template such as ``{schema}.{table}``.

    Raises:
        SchemaRefusedError: the database has no such name.
    """
    schema, name = (
        part.replace("{schema}", "\0").replace("{table}", table.name).replace("\0", table.schema)
        for part in template.split(".")
    )
    place = Place(table, schema, name, quote)
    quote(schema), quote(name)
    return place
