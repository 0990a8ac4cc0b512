"""Java's packages and classes by name, without a request to the JVM for each part of a name.

py4j asks the JVM what ``org`` is, then ``org.apache``, and so on, at each use of a name: seven requests for a
class of Delta. Each request also hands over the interpreter's lock, so that a commit of a few rows spent most
of its time in names (docs/adr/0038).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class JavaPackage:
    """A Java package. Its attributes are packages (``sql``), or classes if they begin with a capital letter.

    A class that does not exist is only noticed when it is used.
    """

    def __init__(self, client: Any, name: str = "") -> None:
        """Create the package ``name``. ``client``: py4j's client of the JVM."""
        self._client = client
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        path = f"{self._name}.{name}" if self._name else name
        kind = StaticClass if name[0].isupper() or "$" in name else JavaPackage
        member = kind(self._client, path)
        setattr(self, name, member)
        return member


class StaticClass:
    """A Java class: its constructor, and its static members, which are looked up once.

    A static field must be final, such as ``MODULE$`` of a Scala object.
    """

    def __init__(self, client: Any, name: str) -> None:
        """Create the class ``name``. ``client``: py4j's client of the JVM."""
        from py4j.java_gateway import JavaClass

        self._class = JavaClass(name, client)

    def __call__(self, *args: Any) -> Any:
        """Returns a new object of the class."""
        return self._class(*args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        member = getattr(self._class, name)
        setattr(self, name, member)
        return member


def scala_object(package: Any, name: str) -> Any:
    """Returns a Scala object, such as ``None``, by its name in a package."""
    return getattr(getattr(package, f"{name}$"), "MODULE$")


def java_names(session: SparkSession) -> Any:
    """Returns the packages of a session's JVM: ``java_names(session).java.util.ArrayList()``."""
    jvm: Any = session._jvm
    return _names_of(jvm._gateway_client)


@cache
def _names_of(client: Any) -> JavaPackage:
    return JavaPackage(client)
