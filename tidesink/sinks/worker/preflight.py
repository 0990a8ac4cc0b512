"""Checks before a pipeline runs: the location of its tables in the target, and limits of the target."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from tidesink.codecs.open import CODECS
from tidesink.config import Config, KafkaSettings, TableConfig, TargetSettings
from tidesink.errors import LEAVE_OUT, LOAD_AGAIN, ConfigError, SchemaRefusedError
from tidesink.events import TableId, fold_name
from tidesink.sinks.targets import target_module
from tidesink.sinks.targets.base import Capabilities, Limit, PreflightResult
from tidesink.typemap.table import row_of
from tidesink.typemap.target_schema import Shard, TargetColumn, TargetSchema, without

if TYPE_CHECKING:
    from tidesink.config.models import Destination


NO_NUL: Final = "Text in the target cannot hold the character U+0000. A row that contains it stops its table."
_NO_ROWS: Final = (
    "The target forwards rows and does not store them. If the table's columns change, rows that were already "
    "sent stay as they are."
)
_ONCE_MORE: Final = (
    "Each row is sent at least once. After a crash, some rows are sent again with the same idempotency key."
)
_NO_RESCALE: Final = (
    "The target cannot give a decimal column more digits after the point, and cannot turn an integer column "
    f"into a decimal. If that happens at the source, the table waits (PAUSED) until you {LEAVE_OUT} or "
    f"{LOAD_AGAIN}."
)
_SHARED: Final = (
    "Several source tables share the table in the target, so its columns are never dropped or renamed, "
    "whatever the policy."
)
_NO_TYPE: Final = (
    "A column cannot change to a type if no type can hold the values of both (number to text, date to time). "
    f"The table waits (PAUSED) until you {LEAVE_OUT} or {LOAD_AGAIN}."
)
_NOT_MADE: Final = (
    "If the table exists in the target, it continues without the columns that it lacks (schema-changes: add: "
    "{}). If it does not exist, it cannot be created: {}"
)
_NO_KEY: Final = (
    "A change of the primary key is not applied. The table waits (PAUSED) until `keys` in the config names "
    f"the columns of the old key, or you {LOAD_AGAIN}."
)


def column_type(config: Config, column: TargetColumn) -> str:
    """Return the name of a column's type in the target, as the target itself writes it."""
    return target_module(config.target).PREFLIGHT.column_type(config.target, column)


def preflight_of(config: Config, shape: TargetSchema, theirs: Collection[str]) -> PreflightResult:
    """Check if a target can store a table, without writing to it, and return the target's limits and
    warnings.

    ``shape``: the table's columns and key in the target. ``theirs``: names of the columns from the source.

    Raises:
        SchemaRefusedError: the target cannot have such a table; the message contains a remedy.
        ConfigError: the target cannot be used as configured.
    """
    module, settings = target_module(config.target), config.table_config(shape.source)
    result = _preflight(config, shape, theirs)
    reported = CODECS[config.source.protocol].tells_ddl
    limits = (
        *row_limits(module.CAPABILITIES, shape, theirs),
        *result.limits,
        *change_limits(module.CAPABILITIES, shape, settings, reported=reported),
    )
    return result._replace(limits=limits)


def _preflight(config: Config, shape: TargetSchema, theirs: Collection[str]) -> PreflightResult:
    """Return the result of the target's own check of a table.

    Unless ``schema-changes: add`` is ``apply``, a table that exists in the target does not get new columns.
    So if the target refuses only such columns, the refusal becomes a warning.
    """
    settings = config.table_config(shape.source)
    add, asked = settings.schema_changes.add, settings.projection.asked
    foresee = target_module(config.target).PREFLIGHT.foresee
    try:
        return foresee(config, shape)
    except SchemaRefusedError as refused:
        if add == "apply":
            raise
        new = {
            c.name for c in shape.columns if c.name in theirs and not c.key and fold_name(c.name) not in asked
        }
        result = foresee(config, without(shape, new))
        return result._replace(warnings=(*result.warnings, _NOT_MADE.format(add, refused.message)))


def row_limits(able: Capabilities, shape: TargetSchema, theirs: Collection[str]) -> Iterator[Limit]:
    """Yield the limits of a target that concern rows and not schema changes.

    These are: rows are not delivered exactly once; rows are not stored; text cannot contain U+0000. ``able``:
    the target's capabilities. ``theirs``: names of the columns that come from the source.
    """
    if not able.exactly_once:
        yield Limit("exactly-once", _ONCE_MORE)
    if "rows" not in able.features:
        yield Limit("keeps-rows", _NO_ROWS)
    texts = tuple(c.name for c in shape.columns if c.name in theirs and _may_hold_nul(c))
    if texts and not able.nul_in_text:
        yield Limit("nul-in-text", NO_NUL, texts)


def _may_hold_nul(column: TargetColumn) -> bool:
    """Return True if values of a column may contain the character U+0000. JSON columns escape it."""
    return row_of(column.type).reader == "text" and row_of(column.type).name != "json"


def change_limits(
    able: Capabilities, shape: TargetSchema, settings: TableConfig, *, reported: bool
) -> Iterator[Limit]:
    """Yield a limit for each schema change that the table's policies allow but the target cannot apply.

    ``able``: the target's capabilities. ``reported``: True if the protocol has events for dropped and renamed
    columns.
    """
    policies, logs = settings.schema_changes, settings.mode == "append"
    numbers = tuple(c.name for c in shape.columns if c.spark.startswith(("decimal", "int", "bigint")))
    if policies.widen == "apply" and numbers and not able.rescales:
        yield Limit("rescale", _NO_RESCALE, numbers)
    if policies.widen == "apply" and numbers and "widen" in able.caveats:
        yield Limit("widen", able.caveats["widen"], numbers)
    kinds: tuple[Literal["drop", "rename"], ...] = ("drop", "rename") if reported and not logs else ()
    asked = [kind for kind in kinds if policies.policy(kind) == "apply"]
    if asked and shape.shard is not None:
        yield Limit("shared", _SHARED)
    elif "rows" in able.features:
        yield from (Limit(kind, able.caveats[kind]) for kind in asked if kind in able.caveats)
    yield Limit("type", _NO_TYPE)
    if not logs:
        yield Limit("key", _NO_KEY)


class Goals:
    """Detects source tables whose routes lead to the same table in the target, and tables in two topics.

    The first source table that claims a location in the target owns it, and the first topic with a table
    owns the table. A worker, ``plan`` and ``validate`` all use this class, so they refuse the same tables.
    ``destination``: returns the target table and shard to which the route of a source table leads.
    ``place``: returns the location of a target table. Two names that the target cannot distinguish, for
    example because it ignores case, have the same location.
    """

    def __init__(
        self, destination: Callable[[TableId], Destination], place: Callable[[TableId], str] = str
    ) -> None:
        self._destination = destination
        self._place = place
        self._columns: dict[str, tuple[TableId, str | None]] = {}
        self._owners: dict[tuple[str, Shard | None], TableId] = {}
        self._topics: dict[TableId, str] = {}

    @classmethod
    def of(cls, config: Config) -> Goals:
        """Create the object for the routes and the target of a pipeline."""
        return cls(config.destination, partial(_place_of, config.target))

    def refusal(self, table: TableId, topic: str) -> ConfigError | None:
        """Claim the location of a source table in the target. Return an error if this is not possible.

        It is not possible if another topic has the same table, if another source table owns the location and
        shard, or if the routes of two source tables give the target table different shard columns.
        """
        first_topic = self._topics.setdefault(table, topic)
        if first_topic != topic:
            return _two_topics(table, first_topic, topic)
        try:
            destination = self._destination(table)
        except ConfigError as error:
            return error
        column = destination.shard.column if destination.shard else None
        location = self._place(destination.table)
        first, owned = self._columns.setdefault(location, (table, column))
        owner = self._owners.setdefault((location, destination.shard), table)
        if owner != table:
            if destination.shard is None and self._destination(owner).table != destination.table:
                return _one_name(table, owner, location)
            return _one_place(table, owner, destination)
        if owned != column:
            return ConfigError(
                f"{first} and {table} both go to the target table {destination.table}, but with different "
                f"shard columns: {owned or '(none)'} and {column or '(none)'}. Give their routes the same "
                "shard-column, or different tables (to).",
                table=str(table),
            )
        return None


def _two_topics(table: TableId, owner: str, topic: str) -> ConfigError:
    return ConfigError(
        f"{table} appears in two topics, {owner} and {topic}, and the order of their records is unknown. "
        "Limit source.topics to one of the two topics.",
        table=str(table),
    )


def _one_place(table: TableId, owner: TableId, destination: Destination) -> ConfigError:
    if destination.shard is None:
        return ConfigError(
            f"{owner} goes to {destination.table} already, and rows of the two tables with equal keys would "
            "overwrite each other. Give the route a shard-column, or another table (to).",
            table=str(table),
        )
    return ConfigError(
        f"{owner} goes to {destination.table} as shard {destination.shard.value!r} already. Change `shard` "
        "in the route so that the two tables get different values, or remove it to use the whole table name.",
        table=str(table),
    )


def _one_name(table: TableId, owner: TableId, location: str) -> ConfigError:
    return ConfigError(
        f"{owner} goes to {location} already. {table} would go there, too, and rows of the two tables with "
        "equal keys would overwrite each other. Give one of the two tables a route to another name, or "
        "change the template of the target's names so that the two names differ.",
        table=str(table),
    )


def _place_of(target: TargetSettings, table: TableId) -> str:
    """Return the location of a table in the target.

    Returns the table's own name if several tables may share a location, such as a Kafka topic with messages
    of several tables.
    """
    is_shared = "rows" not in target.features
    if isinstance(target, KafkaSettings):
        is_shared = CODECS[target.protocol].shares_topics or not target.rule.names_tables
    if is_shared:
        return str(table)
    try:
        return target_module(target).place_of(target, table)
    except SchemaRefusedError:  # the target cannot have such a name, which the table's plan reports
        return str(table)


def shown_target(config: Config, table: TableId) -> dict[str, str]:
    """Return a table's name and shard in the target as details of its status.

    Empty if the table has the same name in the target as in the source, and no shard.
    """
    try:
        destination = config.destination(table)
    except ConfigError:
        return {}
    if destination.table == table and destination.shard is None:
        return {}
    shard = {"shard": destination.shard.value} if destination.shard else {}
    return {"target_table": str(destination.table), **shard}
