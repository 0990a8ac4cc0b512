"""A table's place in a database, the database server's address, and row positions as bytes.

A position begins with the source's numbers, each as the byte 1 and eight bytes. The byte 0 ends them, so that
a position that is a prefix of another sorts first. Then follow the flag of a write (1 byte), partition (4),
offset (8) and index (4). All numbers are big-endian and not negative. A position of TiCDC's events has 27
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidesink.errors import TargetError, TransientTargetError
from tidesink.events import TableId
from tidesink.source_database.connection_faults import ConnectionFault
from tidesink.typemap.render_sql import Database
from tidesink.typemap.target_schema import Shard

if TYPE_CHECKING:
    from tidesink.config.targets import SqlSettings


LEDGER: Final = "_tidesink_ledger"
SHARDS: Final = "_tidesink_shards"
_STAGING: Final = "_tidesink_staging_"
_GATHERED: Final = "_tidesink_gathered_"


@dataclass(frozen=True)
class Place:
    """One table. ``schema`` is a database in MySQL. ``location`` and ``ledger`` are quoted names.

    ``shard``: set if several source tables share the table. The source table's ledger is then a row of
        ``shards``.
    """

    source: TableId
    schema: str
    name: str
    quote: Callable[[str], str]
    shard: Shard | None = None

    @property
    def location(self) -> str:
        """The table's quoted name."""
        return self._quoted(self.name)

    @property
    def ledger(self) -> str:
        """The ledger of the table's schema."""
        return self._quoted(LEDGER)

    @property
    def shards(self) -> str:
        """The ledger of the schema's shared tables."""
        return self._quoted(SHARDS)

    @property
    def own_ledger(self) -> str:
        """The ledger that has the source table's row."""
        return self.shards if self.shard else self.ledger

    @property
    def shown(self) -> str:
        """The table's name for messages."""
        return f"{self.schema}.{self.name}"

    @property
    def staging_prefix(self) -> str:
        """Prefix of the names of this table's staging tables."""
        return f"{_STAGING}{self._digest}_"

    @property
    def gathered(self) -> str:
        """Name of the side table that has the changes of the next cut (``sql.cuts``)."""
        return _GATHERED + self._digest

    @property
    def _digest(self) -> str:
        own = f"{self.schema}\0{self.name}" + (f"\0{self.shard.value}" if self.shard else "")
        return sha256(own.encode()).hexdigest()[:12]

    def staging(self, epoch: int) -> str:
        """Return the staging table of an epoch. A worker that lost the table writes to another one."""
        return self._quoted(f"{self.staging_prefix}{epoch}")

    def beside(self, name: str) -> str:
        """Return the quoted name of another table in the same schema."""
        return self._quoted(name)

    def _quoted(self, name: str) -> str:
        return f"{self.quote(self.schema)}.{self.quote(name)}"


def place_in(template: str, table: TableId, quote: Callable[[str], str]) -> Place:
    """Return the place of a source table under a template such as ``{schema}.{table}``.

    Raises:
        SchemaRefusedError: the database does not allow the name.
    """
    schema, name = (
        part.replace("{schema}", "\0").replace("{table}", table.name).replace("\0", table.schema)
        for part in template.split(".")
    )
    place = Place(table, schema, name, quote)
    quote(schema), quote(name)
    return place


CONNECT_SECONDS = 10
# Seconds that a statement waits for another transaction's lock before the batch is tried again.
LOCK_SECONDS = 60
# Seconds without a statement after which the server ends our transaction. This releases the ledger row of a
# worker that froze, so that another worker can claim the table. No transaction stays open while Spark works.
SILENT_SECONDS = 300


@dataclass(frozen=True)
class Endpoint:
    """A database server.

    ``tls``: as in Postgres: disable, prefer, require, verify-ca, verify-full.
    ``silence``: seconds without a statement after which the server ends a transaction.
    """

    host: str
    port: int
    database: str
    user: str
    password: str = field(repr=False)
    tls: str = "prefer"
    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    silence: int = SILENT_SECONDS

    @property
    def shown(self) -> str:
        """The server for messages: host, port and database."""
        return f"{self.host}:{self.port}" + (f"/{self.database}" if self.database else "")


def endpoint_of(settings: SqlSettings) -> Endpoint:
    """Return the server that the settings name."""
    parts = urlsplit(settings.url)
    tls = settings.tls
    return Endpoint(
        parts.hostname or "",
        parts.port or settings.default_port,
        unquote(parts.path.strip("/")),
        settings.user,
        settings.password.get_secret_value() if settings.password else "",
        tls.mode,
        tls.ca,
        tls.certificate,
        tls.key,
    )


_NAMES: Final = {
    "url": "target.url",
    "login": "target.user and target.password",
    "tls": "target.tls.mode",
    "ca": "target.tls.ca",
}


def not_connected(fault: ConnectionFault, kind: str, endpoint: Endpoint) -> TargetError:
    """Return the error of a failed connection; ``kind``: the server's kind."""
    names = {**_NAMES, "server": f"{kind} at {endpoint.shown}", "user": endpoint.user}
    return (TransientTargetError if fault.passes else TargetError)(fault.text(names))


# Type of the position in each database. It has room for 26 numbers of the source.
SEQUENCE_TYPES: Final[Mapping[Database, str]] = MappingProxyType(
    {"postgres": "bytea", "mysql": "varbinary(255)"}
)
_MEMBER: Final = 1
_LONG: Final = 8  # bytes
_INT: Final = 4


def packed_positions(sequences: pa.StructArray) -> pa.Array:
    """Return positions as bytes, from a column of ``SEQUENCE_DDL``. Handles those of equal length at once."""
    lengths = np.asarray(pc.list_value_length(pc.struct_field(sequences, ["source"])))
    places = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
    if not places:
        return pa.array([], pa.binary())
    parts = [_packed(sequences.take(pa.array(where)), int(lengths[where[0]])) for where in places]
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(places))))


def _packed(sequences: pa.StructArray, length: int) -> pa.Array:
    """Return positions as bytes. Each has ``length`` numbers of the source."""
    count = len(sequences)
    source, writes, *place = (
        pc.struct_field(sequences, [name]) for name in ("source", "writes", "partition", "offset", "index")
    )
    members = np.full((count, length, 1 + _LONG), _MEMBER, np.uint8)
    members[:, :, 1:] = _big_endian(pc.list_flatten(source), _LONG).reshape(count, length, _LONG)
    kind = np.zeros((count, 2), np.uint8)  # the byte that ends the numbers, and the flag of a write
    kind[:, 1] = np.asarray(pc.cast(writes, pa.uint8()))
    rest = [_big_endian(one, size) for one, size in zip(place, (_INT, _LONG, _INT), strict=True)]
    matrix = np.hstack([members.reshape(count, -1), kind, *rest])
    fixed = pa.binary(matrix.shape[1])
    whole = pa.Array.from_buffers(fixed, count, [None, pa.py_buffer(np.ascontiguousarray(matrix))])
    return whole.cast(pa.binary())


def _big_endian(numbers: pa.Array, size: int) -> npt.NDArray[np.uint8]:
    return np.asarray(numbers).astype(f">i{size}").view(np.uint8).reshape(-1, size)


def hex_above(commit_ts: int) -> str:
    """Return hex digits that are greater than every position up to a commit_ts, and not than later ones."""
    return f"{_MEMBER:02x}{commit_ts + 1:0{2 * _LONG}x}"


def commit_ts_in(digits: str) -> int:
    """Return the commit_ts, the source's first number, from a position's hex digits."""
    return int(digits[2 : 2 + 2 * _LONG], 16)
