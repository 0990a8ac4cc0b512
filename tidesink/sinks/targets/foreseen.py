"""What can be said of a table at a target before anything runs, without asking the target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from tidesink.config import Config
    from tidesink.sinks.shape import ShapeColumn, TableShape

LimitKind = Literal[
    "durable",
    "exactly-once",
    "keeps-rows",
    "nul-in-text",
    "row-length",
    "key-length",
    "truncate",
    "left-out-values",
    "add",
    "widen",
    "rescale",
    "shared",
    "drop",
    "rename",
    "type",
    "key",
]


class Limit(NamedTuple):
    """One thing that a target cannot do, and that a table may meet.

    ``kind`` is for programs (``docs/cli.md``). ``text`` is the same for every table, so that it is said once;
    ``columns``: those of the table that it is about, where it is not about the table as a whole.
    """

    kind: LimitKind
    text: str
    columns: tuple[str, ...] = ()


class Foreseen(NamedTuple):
    """``warnings`` are of this table: the target refuses it unless somebody does something first."""

    limits: tuple[Limit, ...] = ()
    warnings: tuple[str, ...] = ()


class Foresight(ABC):
    """What a kind of target says of its tables."""

    @abstractmethod
    def column_type(self, settings: Any, column: ShapeColumn) -> str:
        """A column's type in the target's own words; ``settings`` are the target's."""

    @abstractmethod
    def foresee(self, config: Config, shape: TableShape) -> Foreseen:
        """What may become of a table, beside what the capabilities say.

        Raises:
            SchemaRefusedError: there can be no such table, whatever is there already.
            ConfigError: the pipeline cannot have it there.
        """


class SparkForesight(Foresight):
    """Of tables with Spark's types; ``check`` refuses a shape of which there can be none."""

    def __init__(self, check: Callable[[TableShape], None]) -> None:
        self._check = check

    def column_type(self, settings: Any, column: ShapeColumn) -> str:  # noqa: ARG002
        """As Spark has it."""
        return column.spark

    def foresee(self, config: Config, shape: TableShape) -> Foreseen:  # noqa: ARG002
        """Nothing more than the capabilities say; raises as ``Foresight`` says."""
        self._check(shape)
        return Foreseen()
