"""What Postgres's catalog says of a view, and how one that stands in the way of a change comes back."""

from __future__ import annotations

from typing import Any

from tidesink.sinks.targets.sql_place import Place


def view_uses(cursor: Any, place: Place, name: str) -> frozenset[str] | None:
    """The columns of the table that the view ``name`` reads; empty where there is none, None for no view."""
    cursor.execute("SELECT relkind FROM pg_class WHERE oid = to_regclass(%s)", (place.beside(name),))
    kind = cursor.fetchone()
    if kind is not None and kind[0] != "v":
        return None
    cursor.execute(
        "SELECT DISTINCT a.attname FROM pg_depend d JOIN pg_rewrite r ON r.oid = d.objid "
        "JOIN pg_attribute a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid "
        "WHERE r.ev_class = to_regclass(%s) AND d.refobjid = to_regclass(%s)",
        (place.beside(name), place.location),
    )
    return frozenset(column for (column,) in cursor.fetchall())


def view_in_the_way(cursor: Any, view: str) -> tuple[list[str], list[str]]:
    """A column's type does not change under a view: it goes before, and gets its rights again after."""
    cursor.execute(
        "SELECT format('GRANT %%s ON %%s TO %%s', a.privilege_type, c.oid::regclass, "
        "CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END) "
        "FROM pg_class c, aclexplode(c.relacl) a WHERE c.oid = to_regclass(%s) AND a.grantee <> c.relowner",
        (view,),
    )
    return [f"DROP VIEW IF EXISTS {view}"], [grant for (grant,) in cursor.fetchall()]
