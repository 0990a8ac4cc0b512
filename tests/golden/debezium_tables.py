"""The columns of the captured tables, by kind: how their values are compared, and how they are declared."""

from __future__ import annotations

from typing import Final

from tidesink.ddl.catalog import TableDefinitions
from tidesink.events import Column, ColumnType, TableId, TableSchema

# Kinds, as in ``debezium_compare``. Several columns of one kind stand together.
_POSTGRES: Final = {
    "p_num": "id si i bi dom:int n10_2 n_any n38_10 n5_0 n_def:decimal m:money r:float32 dbl:float64 bo:bool",
    "p_str": "id:text c vc t ci nm js jb xm lt en ip ci4 ma tsv:text hs:hstore by:bytes b1 b5 bv:bits "
    "pt:point ad:composite",
    "p_time": "id:int d:date t t3:time ttz:timetz ts ts3 ts0:datetime tstz tstz3:instant iv:interval "
    "dr tr ir:text",
    "p_arr": "id:int ia ta na ua ba tsa tza ja ma ia2:array",
    "p_toast": "id small:int big bigj:text bigb:bytes biga:array",
    "p_toast_full": "id small:int big bigj:text bigb:bytes biga:array",
    "p_full": "id b:int a:text",
    "p_nopk": "a:int b:text",
    "p_uidx": "a:int b:text",
    "p_orders": "id:int customer status remark:text amount:decimal updated_at:instant",
    "Weird.Name-t": "Id col_with_space:int select 日本:text",
}
_MARIADB: Final = {
    "late_t2": "id:int v:text",
    "orders": "id:int customer status remark:text amount:decimal updated_at:instant",
    "t_bin": "id b vb tb bl mb lb:hex",
    "t_compk": "k1 n:int k2 v:text",
    "t_ints": "id ti tiu si siu mi miu i iu bi biu ti1 bo y zf d_def:int b1 b8 b13 b64:bit",
    "t_nopk": "a:int b:text",
    "t_num": "id:int d10_2 d65_30 d20_0 d18_4u d_def:decimal f f7_4:float32 dbl:float64",
    "t_str": "id c vc latin tt tx mt lt en se js uu:text",
    "t_time": "id y:int d d_def:date t t3 t6:time dt dt3 dt6:datetime ts ts3 ts6 ts_def:instant",
    "weird.name-t": "id col_with_space 1st:int select 日本:text",
}
# The types a person would declare for plain JSON; a name alone suffices where a kind does not.
_DECLARED: Final = {
    "int": ColumnType("bigint"),
    "text": ColumnType("text"),
    "float32": ColumnType("float"),
    "float64": ColumnType("double"),
    "bool": ColumnType("boolean"),
    "bytes": ColumnType("blob"),
    "money": ColumnType("decimal", precision=19, scale=2),
    "decimal": ColumnType("decimal"),
    "date": ColumnType("local date"),
    "time": ColumnType("time", fsp=6),
    "timetz": ColumnType("zoned time"),
    "datetime": ColumnType("local datetime", fsp=6),
    "instant": ColumnType("instant"),
    "interval": ColumnType("interval"),
    "hstore": ColumnType("map"),
    "point": ColumnType("point"),
    "composite": ColumnType("blob"),
    "array": ColumnType("array"),
}
_EXACT: Final = {
    ("p_num", "n10_2"): ColumnType("decimal", precision=10, scale=2),
    ("p_num", "n38_10"): ColumnType("decimal", precision=38, scale=10),
    ("p_num", "n5_0"): ColumnType("decimal", precision=5, scale=0),
    ("p_num", "n_def"): ColumnType("decimal", precision=6, scale=3),
    ("p_orders", "amount"): ColumnType("decimal", precision=20, scale=4),
    ("p_str", "b1"): ColumnType("bit", length=1),
    ("p_str", "b5"): ColumnType("bit", length=5),
    ("p_str", "bv"): ColumnType("bit", length=10),
}


# Rows from before a column was added have its default, which plain JSON does not tell.
_DEFAULTS: Final = {("p_orders", "remark"): "n/a"}


def _read(text: str) -> dict[str, str]:
    kinds: dict[str, str] = {}
    waiting: list[str] = []
    for word in text.split():
        name, colon, kind = word.partition(":")
        waiting.append(name.replace("col_with_space", "col with space"))
        if colon:
            kinds |= dict.fromkeys(waiting, kind)
            waiting = []
    return kinds


POSTGRES_TABLES: Final = {table: _read(text) for table, text in _POSTGRES.items()}
MARIADB_TABLES: Final = {table: _read(text) for table, text in _MARIADB.items()}


def kinds_of(table: str) -> dict[str, str]:
    """The kinds of a captured table's columns, by name."""
    return (POSTGRES_TABLES | MARIADB_TABLES)[table]


_POSTGRES_SQL: Final = {
    "int": "bigint",
    "float32": "real",
    "float64": "double precision",
    "bool": "boolean",
    "bytes": "bytea",
    "decimal": "numeric",
    "datetime": "timestamp",
    "instant": "timestamptz",
    "composite": "bytea",
    "array": "text[]",
}


def postgres_sql(table: str) -> str:
    """A Postgres table as pg_dump would print it, by the names of base types."""

    def column(name: str, kind: str) -> str:
        exact = _EXACT.get((table, name))
        words = _POSTGRES_SQL.get(kind, kind)
        if exact is not None and exact.name == "decimal":
            words = f"numeric({exact.precision},{exact.scale})"
        if exact is not None and exact.name == "bit":
            words = f"bit varying({exact.length})" if name == "bv" else f"bit({exact.length})"
        default = _DEFAULTS.get((table, name))
        return f'"{name}" {words}' + (f" DEFAULT '{default}'::text" if default else "")

    columns = ", ".join(column(*one) for one in POSTGRES_TABLES[table].items())
    return f'CREATE TABLE lab."{table}" ({columns})'


def postgres_definitions(*, decimals_are_doubles: bool = False) -> TableDefinitions:
    """The Postgres tables as somebody would declare them, under ``decimal.handling.mode: double`` or not."""
    return TableDefinitions(
        TableSchema(
            TableId("lab", table),
            tuple(_column(table, *one, as_double=decimals_are_doubles) for one in kinds.items()),
        )
        for table, kinds in POSTGRES_TABLES.items()
    )


def _column(table: str, name: str, kind: str, *, as_double: bool) -> Column:
    column_type = _EXACT.get((table, name), _DECLARED.get(kind, ColumnType("text")))
    if as_double and column_type.name == "decimal":
        column_type = ColumnType("double")
    return Column(name, column_type, default=_DEFAULTS.get((table, name)))
