"""Errors of Spark tasks that keep their class on the way to the driver.

Spark passes the exception of a task on as text: a traceback, inside one or more exceptions of Java. A task
that runs under ``reporting`` puts its ``TidesinkError`` into that text behind a marker, as JSON in base64,
and ``task_error`` finds it there. It is no pickle: a text may hold bytes of a record, and those must not
become objects.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from tidesink.errors import ContextValue, TidesinkError, told

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")

_MARKED: Final = re.compile(r"\[tidesink error ([A-Za-z0-9+/]+=*)\]")
# Java's causes are looked into no deeper.
_DEPTH: Final = 20


class TaskError(Exception):
    """A ``TidesinkError`` that ended a task. Its text has the error for a reader, and for ``task_error``."""


@contextmanager
def reported() -> Iterator[None]:
    """Raise a ``TidesinkError`` as one that the driver finds."""
    try:
        yield
    except TidesinkError as error:
        # Spark's worker sends UTF-8, and what a record held may not be text.
        text = str(error).encode(errors="backslashreplace").decode()
        # Not chained: the text of a cause may be long, and Spark shows all of it.
        raise TaskError(f"{text} {_marker(error)}") from None


@dataclass(frozen=True)
class Reporting:
    """A function for ``mapInArrow`` whose ``TidesinkError`` the driver finds; can be pickled if it can."""

    function: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the function gives."""
        with reported():
            yield from self.function(batches)


def task_error(error: BaseException) -> TidesinkError | None:
    """The error of a task inside an exception of Spark's; None where no task reported one."""
    for text in _texts(error):
        found = _MARKED.search(text)
        if found is not None:
            return _read(found[1])
    return None


@contextmanager
def raised_task_errors(**context: ContextValue) -> Iterator[None]:
    """Raise the error of a task as what it was there, with ``context`` where it says no other.

    Whatever else Spark raises passes.
    """
    try:
        yield
    except (Py4JError, PySparkException) as exc:
        error = task_error(exc)
        if error is None:
            raise
        raise error.with_context(**context) from exc


def _marker(error: TidesinkError) -> str:
    kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, TidesinkError)]
    text = json.dumps([kinds, error.message, error.context])
    return f"[tidesink error {base64.b64encode(text.encode()).decode()}]"


def _read(coded: str) -> TidesinkError | None:
    try:
        kinds, message, context = json.loads(base64.b64decode(coded))
        known = {kind.__name__: kind for kind in _kinds(TidesinkError)}
        # The nearest class that is imported here: the task may have one that the driver has not.
        kind = next(known[name] for name in kinds if name in known)
        return kind(str(message), **context)
    except (ValueError, TypeError, StopIteration):
        return None


def _kinds(kind: type[TidesinkError]) -> Iterator[type[TidesinkError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


def _texts(error: BaseException) -> Iterator[str]:
    """What an exception and its causes say, Python's and Java's."""
    cause: BaseException | None = error
    for _ in range(_DEPTH):
        if cause is None:
            return
        yield told(cause)
        yield from _java_texts(cause)
        cause = cause.__cause__


def _java_texts(error: BaseException) -> Iterator[str]:
    throwable: Any = (
        error.java_exception if isinstance(error, Py4JJavaError) else getattr(error, "_origin", None)
    )
    for _ in range(_DEPTH):
        if throwable is None:
            return
        try:
            text, throwable = str(throwable.getMessage()), throwable.getCause()
        except (Py4JError, OSError):  # the JVM has ended
            return
        yield text
