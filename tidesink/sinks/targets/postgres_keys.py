"""Whether a Postgres table tells its keys apart as their bytes do.

A collation that is not deterministic takes different texts for one; a unique index may have another than
its column, and ``ON CONFLICT`` asks every one that is on the key.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

from tidesink.errors import SchemaRefusedError
from tidesink.sinks.targets.identifier import quote_postgres
from tidesink.sinks.targets.sql_place import Place

# Through jsonb: Postgres 11 has no such column, and no such collations.
_LOOSE: Final = (
    "WITH compared AS (SELECT attrelid, attnum, attcollation AS how, NULL AS of FROM pg_attribute UNION ALL "
    "SELECT i.indrelid, k.attnum, k.how, c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid, "
    "unnest(i.indkey::int2[], i.indcollation::oid[]) AS k (attnum, how) WHERE i.indisunique) "
    "SELECT a.attname, o.collname, c.of FROM compared c JOIN pg_attribute a USING (attrelid, attnum) "
    "JOIN pg_collation o ON o.oid = c.how WHERE attrelid = to_regclass(%s) "
    "AND to_jsonb(o) ->> 'collisdeterministic' = 'false' ORDER BY c.of NULLS FIRST"
)


def check_keys(cursor: Any, place: Place, keys: Collection[str]) -> None:
    """Look at the key's columns (quoted, in lower case), and at the unique indexes that have them.

    Raises:
        SchemaRefusedError: one takes different values for one.
    """
    cursor.execute(_LOOSE, (place.location,))
    for name, compared, index in cursor.fetchall():
        column = quote_postgres(name)
        if column.lower() not in keys:
            continue
        where = f"in the index {index}" if index else "in the table"
        way = f'ALTER TABLE {place.location} ALTER {column} TYPE text COLLATE "C"'
        raise SchemaRefusedError(
            f"the key column {name} of {place.shown} has {where} the collation {compared}, which is not "
            "deterministic: different keys would be one row there, and overwrite each other. Change it, and "
            f"start again: {f'DROP INDEX {place.beside(index)}' if index else way}",
            table=str(place.source),
            column=name,
        )
