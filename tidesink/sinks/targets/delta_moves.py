"""Errors of a Delta table whose rows others moved behind its progress, each with the way out."""

from __future__ import annotations

from tidesink.errors import StaleProgressError
from tidesink.sinks.targets.delta_log import Commit


def moved(move: Commit, version: int, *, path: str, table: str) -> StaleProgressError:
    """After our commit ``version``: its rows can be brought forward again."""
    return StaleProgressError(
        f"{move.operation} at version {move.version} changed rows behind the progress of version "
        f"{version}: going on would leave a gap. Either bring them forward again with RESTORE TABLE "
        f"delta.`{path}` TO VERSION AS OF {version}, or remove the table's folder and let the "
        "worker load it again from the start of its topic",
        table=table,
    )


def moved_within(move: Commit, version: int, *, path: str, table: str) -> StaleProgressError:
    """While our commit ``version`` was made: it stands on rows that lack what was applied before."""
    return StaleProgressError(
        f"{move.operation} at version {move.version} changed rows while version {version} was written by a "
        "worker, which so stands on rows with a gap; no version after it is whole. Remove the folder "
        f"{path} and let the worker load the table again from the start of its topic",
        table=table,
    )


def moved_unseen(move: Commit, *, path: str, table: str) -> StaleProgressError:
    """After a commit of ours that Delta has cleaned away."""
    return StaleProgressError(
        f"{move.operation} at version {move.version} changed rows behind the progress, and Delta has "
        "cleaned away the commits which would say what is still applied: going on might leave a gap. "
        f"Remove the folder {path} and let the worker load the table again from the start of its "
        "topic",
        table=table,
    )


def shortened(latest: int, version: int, *, path: str, table: str) -> StaleProgressError:
    """The log ended at ``version`` when we looked, and ends at ``latest`` now."""
    return StaleProgressError(
        f"the log of the Delta table at {path} ended at version {version} and ends at {latest} now: "
        "an older copy of the table was put in its place. Nothing was written. Start the worker again: "
        "it says how to go on",
        table=table,
    )
