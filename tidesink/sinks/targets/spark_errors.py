"""Exceptions of Spark, looked into by Java class, for every target that works in it.

By text only where no class tells (``said``): texts change with versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from tidesink.errors import TidesinkError, ValueNotStoredError, told
from tidesink.sinks.targets.base import NOT_STORED

# What SQL's raise_error throws; only statements of ours are run where this is looked for.
_SPARK_THROWABLE: Final = "org.apache.spark.SparkRuntimeException"
_RAISED: Final = "USER_RAISED_EXCEPTION"
# What a caller must catch around calls into Spark; a connection that is refused means that the JVM has ended.
SPARK_ERRORS: Final = (Py4JError, PySparkException, ConnectionError)


def row_not_stored(exc: BaseException) -> TidesinkError | None:
    """The error which a MERGE of ours raises by itself (``delta_merge``); nothing was written."""
    for cause in _causes(exc):
        if is_java(cause, _SPARK_THROWABLE) and cause.getCondition() == _RAISED:
            return _not_stored(str(cause.getMessageParameters().get("errorMessage")))
    return None


def _not_stored(text: str) -> TidesinkError | None:
    try:
        told = json.loads(text)
        columns = ", ".join(told.pop("_kept"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # raised by a constraint of the table's own
    place = {name.removeprefix("_"): value for name, value in told.items()}
    return ValueNotStoredError(NOT_STORED.format(columns=columns), **place)


def is_java(throwable: Any, name: str) -> bool:
    """True when a Java object is of a class or of a subclass of it."""
    return name in _superclasses(throwable)


def class_names(exc: BaseException) -> Iterator[str]:
    """The classes and superclasses of the Java exception and of its causes."""
    for throwable in _causes(exc):
        yield from _superclasses(throwable)


def _causes(exc: BaseException) -> Iterator[Any]:
    """The Java exception and its causes, the outermost first."""
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
    """What the causes of an exception say, Python's and Java's. To search: it may hold values of rows."""
    texts, cause = list[str](), exc.__cause__
    while cause is not None:
        texts += [str(java.toString()) for java in _causes(cause)] or [told(cause)]
        cause = cause.__cause__
    return "\n".join(texts)


def summary(exc: BaseException) -> str:
    """Java class, error class where there is one, and the classes of the causes.

    The texts may hold values of rows and stay out.
    """
    names = [str(cause.getClass().getSimpleName()) for cause in _causes(exc)]
    if not names:
        return type(exc).__name__
    condition = exc.getCondition() if isinstance(exc, PySparkException) else None
    first = f"{names[0]} {condition}" if condition else names[0]
    return " from ".join(dict.fromkeys((first, *names[1:])))
