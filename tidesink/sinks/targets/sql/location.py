"""A table's schema and name in a database, the database server's address, and row positions as bytes.

A row's position (``_tidesink_seq``) is stored as bytes that sort like the position. It begins with the
source's numbers, such as a commit_ts, each as the byte 1 and eight more bytes. The byte 0 ends these numbers,
so that a list of numbers sorts before any longer list that starts with it. Then follow the flag of a write (1
byte), the partition (4), the offset (8) and the index (4). All numbers are big-endian and not negative. A
position of TiCDC's events has 27 bytes.
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
    """The target table of a source table: its schema and name, and the names of tidesink's tables next to it.

    ``schema``: the schema, which is a database in MySQL.
    ``quote``: the database's function that quotes an identifier.
    ``shard``: set if several source tables share the target table. The source table's ledger row is then in
        the table ``shards`` instead of ``ledger``.
    """

    source: TableId
    schema: str
    name: str
    quote: Callable[[str], str]
    shard: Shard | None = None

    @property
    def location(self) -> str:
        """The quoted name of the table, with its schema."""
        return self._quoted(self.name)

    @property
    def ledger(self) -> str:
        """The quoted name of the schema's ledger table, which has a row for each target table."""
        return self._quoted(LEDGER)

    @property
    def shards(self) -> str:
        """The quoted name of the schema's ledger of shared tables, which has a row for each shard."""
        return self._quoted(SHARDS)

    @property
    def own_ledger(self) -> str:
        """The quoted name of the ledger table that has this source table's row."""
        return self.shards if self.shard else self.ledger

    @property
    def shown(self) -> str:
        """The table's schema and name, for messages."""
        return f"{self.schema}.{self.name}"

    @property
    def staging_prefix(self) -> str:
        """Prefix of the names of this table's staging tables."""
        return f"{_STAGING}{self._digest}_"

    @property
    def gathered(self) -> str:
        """Name of the side table that collects this table's changes until the next cut (``sql.cuts``)."""
        return _GATHERED + self._digest

    @property
    def _digest(self) -> str:
        own = f"{self.schema}\0{self.name}" + (f"\0{self.shard.value}" if self.shard else "")
        return sha256(own.encode()).hexdigest()[:12]

    def staging(self, epoch: int) -> str:
        """Return the quoted name of the staging table of an epoch.

        Each epoch has its own table, so a fenced worker does not write into the staging table of its
        successor.
        """
        return self._quoted(f"{self.staging_prefix}{epoch}")

    def beside(self, name: str) -> str:
        """Return the quoted name of the table ``name`` in the schema of this target table."""
        return self._quoted(name)

    def _quoted(self, name: str) -> str:
        return f"{self.quote(self.schema)}.{self.quote(name)}"


def place_in(template: str, table: TableId, quote: Callable[[str], str]) -> Place:
    """Return the target table of a source table under a name template such as ``{schema}.{table}``.

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
# Seconds that a statement waits for another transaction's lock. Then it fails, and the batch is tried again.
LOCK_SECONDS = 60
# Seconds without a statement after which the server ends our transaction. If a worker hangs, this releases
# its lock on the ledger row, so that another worker can claim the table. No transaction stays open while
# Spark works.
SILENT_SECONDS = 300


@dataclass(frozen=True)
class Endpoint:
    """The address of a database server, the login, and the TLS files.

    ``database``: the database to connect to; empty for none.
    ``tls``: TLS mode, with Postgres's names: disable, prefer, require, verify-ca or verify-full.
    ``ca``, ``certificate``, ``key``: paths of PEM files, or None.
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
        """The server's host, port and database, as a text for messages."""
        return f"{self.host}:{self.port}" + (f"/{self.database}" if self.database else "")


def endpoint_of(settings: SqlSettings) -> Endpoint:
    """Return the address and login of the database server that a target's settings name."""
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
    """Return the error for a failed connection; ``kind``: the name of the DBMS, for the message."""
    names = {**_NAMES, "server": f"{kind} at {endpoint.shown}", "user": endpoint.user}
    return (TransientTargetError if fault.passes else TargetError)(fault.text(names))


# Type of the position column in each DBMS. MySQL's holds positions with up to 26 numbers of the source.
SEQUENCE_TYPES: Final[Mapping[Database, str]] = MappingProxyType(
    {"postgres": "bytea", "mysql": "varbinary(255)"}
)
_MEMBER: Final = 1
_LONG: Final = 8  # bytes
_INT: Final = 4


def packed_positions(sequences: pa.StructArray) -> pa.Array:
    """Convert rows' positions in the source's order to bytes that sort in the same order.

    ``sequences``: an array of the type ``base.SEQUENCE_DDL``.
    """
    lengths = np.asarray(pc.list_value_length(pc.struct_field(sequences, ["source"])))
    places = [np.flatnonzero(lengths == length) for length in np.unique(lengths)]
    if not places:
        return pa.array([], pa.binary())
    parts = [_packed(sequences.take(pa.array(where)), int(lengths[where[0]])) for where in places]
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate(places))))


def _packed(sequences: pa.StructArray, length: int) -> pa.Array:
    """Convert positions, each with ``length`` numbers of the source, to bytes that sort in the same order."""
    count = len(sequences)
    source, writes, *others = (
        pc.struct_field(sequences, [name]) for name in ("source", "writes", "partition", "offset", "index")
    )
    members = np.full((count, length, 1 + _LONG), _MEMBER, np.uint8)
    members[:, :, 1:] = _big_endian(pc.list_flatten(source), _LONG).reshape(count, length, _LONG)
    kind = np.zeros((count, 2), np.uint8)  # the byte that ends the numbers, and the flag of a write
    kind[:, 1] = np.asarray(pc.cast(writes, pa.uint8()))
    rest = [_big_endian(column, size) for column, size in zip(others, (_INT, _LONG, _INT), strict=True)]
    matrix = np.hstack([members.reshape(count, -1), kind, *rest])
    fixed = pa.binary(matrix.shape[1])
    whole = pa.Array.from_buffers(fixed, count, [None, pa.py_buffer(np.ascontiguousarray(matrix))])
    return whole.cast(pa.binary())


def _big_endian(numbers: pa.Array, size: int) -> npt.NDArray[np.uint8]:
    return np.asarray(numbers).astype(f">i{size}").view(np.uint8).reshape(-1, size)


def hex_above(commit_ts: int) -> str:
    """Return hex digits that sort after all positions up to ``commit_ts`` and before all later positions."""
    return f"{_MEMBER:02x}{commit_ts + 1:0{2 * _LONG}x}"


def commit_ts_in(digits: str) -> int:
    """Return the commit_ts of a row's position, which is given as hex digits.

    The commit_ts is the first number in a position.
    """
    return int(digits[2 : 2 + 2 * _LONG], 16)
