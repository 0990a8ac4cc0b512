"""The number and the attempt id of the task that runs now, in Spark or in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Final, NamedTuple


class TaskAttempt(NamedTuple):
    """One attempt of a task.

    Attributes:
        number: The task's number among the tasks that run at the same time, from 0.
        attempt: A number that no other attempt of this process or of its Spark application has. Spark's ids
            are not negative, and those of tasks that run in this process are negative.
    """

    number: int
    attempt: int


_OUTSIDE: Final = TaskAttempt(0, 0)
_IDS: Final = count(-1, -1)
_LOCAL: Final[ContextVar[TaskAttempt | None]] = ContextVar("tidesink_local_attempt", default=None)


@contextmanager
def local_attempt() -> Iterator[None]:
    """Run the block as one attempt of a task in this process.

    A generator that the block makes must also be read in the block.
    """
    token = _LOCAL.set(TaskAttempt(0, next(_IDS)))
    try:
        yield
    finally:
        _LOCAL.reset(token)


def task_attempt() -> TaskAttempt:
    """Returns the attempt of the current task. Outside of tasks, both of its numbers are 0."""
    local = _LOCAL.get()
    if local is not None:
        return local
    from pyspark import TaskContext

    context = TaskContext.get()
    return _OUTSIDE if context is None else TaskAttempt(context.partitionId(), context.taskAttemptId())
