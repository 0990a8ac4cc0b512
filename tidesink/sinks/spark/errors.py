"""Converts errors of Spark and its tasks to tidesink's errors: by class, or by text if there is no class."""

from __future__ import annotations

import base64
import errno
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, PythonException

from tidesink.errors import (
    ConfigError,
    ContextValue,
    SourceError,
    SourceUnavailableError,
    StopRequestedError,
    TidesinkError,
    ValueNotStoredError,
    error_text,
)
from tidesink.sinks.spark.daemon import answer_at_once

if TYPE_CHECKING:
    import pyarrow as pa

    from tidesink.events import TableId


R = TypeVar("R")

_MARKED: Final = re.compile(r"\[tidesink error ([A-Za-z0-9+/]+=*)\]")
# Python's message if a Spark worker cannot unpickle its task.
_NO_MODULE: Final = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'", re.MULTILINE)
# In a traceback: a frame with the file's name, and the class of the raised error.
_FRAME: Final = re.compile(r'File "[^"]*?([^/"]+)", line (\d+)')
_ENDS: Final = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception))\b", re.MULTILINE)
# Maximum number of nested causes that are searched.
_DEPTH: Final = 20
# Error numbers of temporary failures of a machine or a device. Other numbers mean a missing file or
# permission, which retries cannot fix.
_PASSING: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS),
        *(errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ESTALE),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL),
    }
)


class TaskError(Exception):
    """A ``TidesinkError`` that ended a Spark task.

    Its text contains the error's message, and the whole error in encoded form, which ``task_error`` decodes.
    """


@contextmanager
def reported() -> Iterator[None]:
    """Run a task so that the driver can recognize tidesink's errors and temporary failures of the task."""
    answer_at_once()
    try:
        yield
    except Exception as exc:
        error = exc if isinstance(exc, TidesinkError) else passing_failure(exc)
        if error is None:
            raise
        # Spark's worker sends UTF-8, but texts from a record may not be valid Unicode.
        text = str(error).encode(errors="backslashreplace").decode()
        # The cause is not chained, because its text may be long, and Spark would show all of it.
        raise TaskError(f"{text} {_marker(error)}") from None


def passing_failure(error: BaseException) -> SourceUnavailableError | None:
    """Returns an error if a failure is temporary: the host ran out of memory, disk space or open files, or a
    connection failed.

    Returns None for any other failure. The causes of the exception are searched too.
    """
    cause: BaseException | None = error
    for _ in range(_DEPTH):
        if cause is None:
            return None
        number = cause.errno if isinstance(cause, OSError) else None
        if number in _PASSING or isinstance(cause, MemoryError | ConnectionError | TimeoutError):
            # The rest of the error's text may be a value of a row.
            reason = "" if number is None else f": {os.strerror(number)}"
            failure = type(cause).__name__ + reason
            return SourceUnavailableError(
                f"A task failed because its host ran out of resources ({failure}). If this happens again, "
                f"check its memory, disk and network."
            )
        cause = cause.__cause__
    return None


@dataclass(frozen=True)
class Reporting:
    """Wraps a function that is passed to ``mapInArrow``, so that the driver recognizes its errors
    (``reported``).

    The object can be pickled if the function can.
    """

    function: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the function's results."""
        with reported():
            yield from self.function(batches)


def task_error(error: BaseException) -> TidesinkError | None:
    """Returns the error that a task reported inside an exception of Spark, or None if no task reported an
    error.
    """
    for text in _texts(error):
        match = _MARKED.search(text)
        if match is not None:
            return _read(match[1])
        missing = _NO_MODULE.search(text)
        if missing is not None:
            return ConfigError(
                f"The Python environment of Spark's executors has no module {missing[1]}. Install the "
                "driver's packages there, with tidesink in the same version and with the same extras. Or "
                "run executors from tidesink's image. Spark's setting spark.pyspark.python names the Python "
                "that executors use."
            )
    return None


@contextmanager
def raised_task_errors(**context: ContextValue) -> Iterator[None]:
    """Replace Spark's exception by the error that a task reported. ``context`` is added to the error.

    If no task reported an error, the new error omits the text of Spark's exception, because it may have
    values of rows.

    Raises:
        SourceUnavailableError: The job was interrupted, for example because an executor, a Python worker or a
            disk was lost. Or a task's host ran out of resources (``passing_failure``).
        SourceError: A task failed because of a fault in its code, or the query plan is invalid.
    """
    try:
        yield
    except (Py4JJavaError, PySparkException) as exc:
        error = task_error(exc) or _job_error(exc)
        raise error.with_context(**context) from exc


@contextmanager
def raised_passing_failures(**context: ContextValue) -> Iterator[None]:
    """Convert temporary failures of this process to SourceUnavailableError.

    Raises:
        SourceUnavailableError: This machine ran out of resources (``passing_failure``).
    """
    try:
        yield
    except Exception as exc:
        error = None if isinstance(exc, TidesinkError) else passing_failure(exc)
        if error is None:
            raise
        raise error.with_context(**context) from exc


@contextmanager
def raised_local_errors() -> Iterator[None]:
    """Raise the errors of a task that runs in this process as ``raised_task_errors`` does for Spark's tasks.

    Raises:
        TidesinkError: The task raised this error.
        StopRequestedError: The task ended because of a stop.
        SourceUnavailableError: This machine ran out of resources (``passing_failure``).
        SourceError: The task failed because of a fault in its code.
    """
    try:
        yield
    except (TidesinkError, StopRequestedError):
        raise
    except TaskError as exc:
        raise task_error(exc) or _fault_error(exc) from exc
    except Exception as exc:
        raise passing_failure(exc) or _fault_error(exc) from exc


def _fault_error(exc: Exception) -> SourceError:
    fault = fault_of(exc.__cause__ or exc)
    return SourceError(
        f"A task of the batch failed ({fault.kind} at {fault.place}). Report this error with the version of "
        f"tidesink."
    )


def _job_error(exc: BaseException) -> SourceError:
    description = summary(exc)
    if isinstance(exc, PythonException):
        # Only the position and the class of the failure are shown, because its text may have values of rows.
        text = error_text(exc)
        names, places = _ENDS.findall(text), _FRAME.findall(text)
        description = (
            ", ".join([*names[-1:], *(f"{file} line {line}" for file, line in places[-1:])]) or description
        )
    elif not isinstance(exc, PySparkException):  # raised for plans, and for expressions on rows
        return SourceUnavailableError(
            f"A Spark job of the batch was interrupted ({description}). If this happens again, check Spark's "
            f"executors."
        )
    return SourceError(
        f"A Spark job of the batch failed ({description}). Report this error with the version of tidesink."
    )


def _marker(error: TidesinkError) -> str:
    kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, TidesinkError)]
    text = json.dumps([kinds, error.message, error.context])
    return f"[tidesink error {base64.b64encode(text.encode()).decode()}]"


def _read(coded: str) -> TidesinkError | None:
    try:
        kinds, message, context = json.loads(base64.b64decode(coded))
        classes = {kind.__name__: kind for kind in _kinds(TidesinkError)}
        # The nearest class that is imported here, because the task may have imported classes that the driver
        # has not.
        kind = next(classes[name] for name in kinds if name in classes)
        return kind(str(message), **context)
    except (ValueError, TypeError, StopIteration):
        return None


def _kinds(kind: type[TidesinkError]) -> Iterator[type[TidesinkError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _kinds(child)


def _texts(error: BaseException) -> Iterator[str]:
    """Yields the texts of an exception and of its causes, in Python and in Java."""
    cause: BaseException | None = error
    for _ in range(_DEPTH):
        if cause is None:
            return
        yield error_text(cause)
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


# The exception of SQL's raise_error. It is only expected in tidesink's own statements.
_SPARK_THROWABLE: Final = "org.apache.spark.SparkRuntimeException"
_RAISED: Final = "USER_RAISED_EXCEPTION"
# Errors that calls into Spark raise. A refused connection means that the JVM has ended.
SPARK_ERRORS: Final = (Py4JError, PySparkException, ConnectionError)


@contextmanager
def translating(translate: Callable[..., TidesinkError], table: TableId) -> Iterator[None]:
    """Convert the errors of calls into Spark or Java with ``translate``, and add the table to their
    context.
    """
    try:
        yield
    except SPARK_ERRORS as exc:
        raise translate(exc, table=str(table)) from exc


NOT_STORED: Final = (
    "The source database did not send the value of {columns}, because it did not change, but the target "
    "does not have the row: its key was changed, the table's filter removed it before this change, or an "
    "event was lost. Set REPLICA IDENTITY FULL on the table, and take a snapshot of the row (`tidesink "
    "snapshot start TABLE --where RANGE`). The table continues if this change and the row are in one "
    "batch, or after a new snapshot."
)


def row_not_stored(exc: BaseException) -> TidesinkError | None:
    """Returns the ValueNotStoredError that tidesink's MERGE statement raised (``targets.lake.merge``), or
    None if ``exc`` has another cause.

    A statement that raised it wrote nothing.
    """
    for cause in _causes(exc):
        if is_java(cause, _SPARK_THROWABLE) and cause.getCondition() == _RAISED:
            return _not_stored(str(cause.getMessageParameters().get("errorMessage")))
    return None


def _not_stored(text: str) -> TidesinkError | None:
    try:
        error_text = json.loads(text)
        columns = ", ".join(error_text.pop("_kept"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # raised by a constraint of the table itself
    context = {name.removeprefix("_"): value for name, value in error_text.items()}
    return ValueNotStoredError(NOT_STORED.format(columns=columns), **context)


def is_java(throwable: Any, name: str) -> bool:
    """Returns True if a Java object is an instance of a class, given by its full name, or of a subclass."""
    return name in _superclasses(throwable)


def class_names(exc: BaseException) -> Iterator[str]:
    """Yields the names of the classes and superclasses of an error's Java exception and its causes."""
    for throwable in _causes(exc):
        yield from _superclasses(throwable)


def _causes(exc: BaseException) -> Iterator[Any]:
    """Yields an error's Java exception and its causes, beginning with the outermost."""
    throwable, depth = _java_exception(exc), 0
    while throwable is not None and depth < 20:
        yield throwable
        throwable, depth = throwable.getCause(), depth + 1


def _java_exception(exc: BaseException) -> Any:
    if isinstance(exc, Py4JJavaError):
        return exc.java_exception
    return getattr(exc, "_origin", None)


def _superclasses(throwable: Any) -> Iterator[str]:
    java_class = throwable.getClass()
    while java_class is not None:
        yield str(java_class.getName())
        java_class = java_class.getSuperclass()


def said(exc: BaseException) -> str:
    """Returns the texts of an exception's causes.

    Use them only for searches, because they may have values of rows.
    """
    texts, cause = list[str](), exc.__cause__
    while cause is not None:
        texts += [str(java.toString()) for java in _causes(cause)] or [error_text(cause)]
        cause = cause.__cause__
    return "\n".join(texts)


def summary(exc: BaseException) -> str:
    """Returns the class of a Java exception, its error class if it has one, and the classes of its causes.

    Texts are omitted, because they may have values of rows.
    """
    names = [str(cause.getClass().getSimpleName()) for cause in _causes(exc)]
    if not names:
        return type(exc).__name__
    condition = exc.getCondition() if isinstance(exc, PySparkException) else None
    first = f"{names[0]} {condition}" if condition else names[0]
    return " from ".join(dict.fromkeys((first, *names[1:])))


class Fault(NamedTuple):
    """An unexpected error, without its text, which may have values of rows.

    Attributes:
        kind: Class of the error and of its causes.
        place: File and line that raised the error.
        trace: File and line of each call that led to the error and to its causes, the last call first.
    """

    kind: str
    place: str
    trace: str

    def __str__(self) -> str:
        return f"{self.kind} at {self.place}. Report this error with the log and the version of tidesink."


def fault_of(exc: BaseException) -> Fault:
    """Returns the class, the position and the trace of an error that is not tidesink's."""
    chain: list[BaseException] = []
    cause: BaseException | None = exc
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    places = [_places(error) for error in chain]
    trace = " from ".join(
        f"{_kind(error)} ({' < '.join(calls)})" for error, calls in zip(chain, places, strict=True)
    )
    return Fault(_kind(exc), places[0][0] if places[0] else "an unknown place", trace)


def _kind(exc: BaseException) -> str:
    try:
        kind = summary(exc)
    except SPARK_ERRORS:  # the JVM has ended, so its details are not available
        kind = type(exc).__name__
    code = errno.errorcode.get(exc.errno or 0) if isinstance(exc, OSError) else None
    return f"{kind} {code}" if code else kind


def _places(exc: BaseException) -> list[str]:
    """Returns file and line of each call in an exception's traceback, the last call first."""
    calls = [(Path(frame.f_code.co_filename), line) for frame, line in walk_tb(exc.__traceback__)]
    return [f"{path.parent.name}/{path.name}:{line}" for path, line in reversed(calls)]
