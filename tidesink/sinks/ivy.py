"""Jars from Maven Central through the Ivy that Spark itself ships: no Maven on the user's machine.

A set of modules is fetched once into a folder of its own under the cache directory and listed in a
marker file; what has a marker is complete, since the folder is moved into place only at the end. An
interrupted download leaves Ivy's own cache behind and goes on from there. One lock a set keeps two
processes apart; the Ivy process inherits it, so that it holds as long as anybody writes.

The cache is ``$TIDESINK_CACHE``, else ``$XDG_CACHE_HOME/tidesink``, else ``~/.cache/tidesink``.
``TIDESINK_IVY_SETTINGS`` names an ``ivysettings.xml`` of one's own (a mirror, credentials), and
``https_proxy`` is honoured.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from tidesink.errors import ConfigError, DevStackError
from tidesink.sinks.java import find_java
from tidesink.sinks.spark_versions import (
    Coordinate,
    connector_set,
    minor_version,
    spark_jars_directory,
    spark_version,
)

Progress = Callable[[str], None]

MARKER: Final = "complete.json"
_LOCK_SECONDS: Final = 1800
_ATTEMPTS: Final = 2
_SHOWN_LINES: Final = 25

# Of what Spark ships itself the larger part is not even fetched; _drop_shipped removes the rest.
_IN_SPARK: Final = (("org.scala-lang", "*"), ("org.slf4j", "*"), ("org.apache.hadoop", "*"))
_JAR_NAME: Final = re.compile(r"(.+?)-\d[^_]*\.jar")

_SETTINGS: Final = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="{poms}" root="https://repo1.maven.org/maven2/"/>
  </resolvers>
</ivysettings>
"""


class Archive(NamedTuple):
    """An artifact that is not a jar: its Maven type and classifier."""

    type: str
    classifier: str


class JarSet(NamedTuple):
    """A named set of Maven modules that are fetched and kept together.

    With ``archive`` the modules are fetched alone, without their dependencies or parent poms.
    """

    name: str
    modules: tuple[Coordinate, ...]
    pinned: tuple[Coordinate, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    archive: Archive | None = None


Finish = Callable[[Path], None]


def silent(_line: str) -> None:
    """A progress callback that shows nothing."""


def _leave(_folder: Path) -> None:
    """The finishing step of a set that needs none."""


def cache_directory() -> Path:
    """Where fetched jars are kept between runs."""
    own = os.environ.get("TIDESINK_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tidesink"


def spark_connector_jars(version: str | None = None, *, progress: Progress = silent) -> list[Path]:
    """The connector jars for a Spark version (default: the installed one), fetched when not yet here.

    Fit for ``spark.jars``: what Spark ships itself is left out. Raises ConfigError for an unknown
    version, DevStackError when the jars cannot be fetched.
    """
    version = version or spark_version()
    wanted = connector_set(version)
    name = f"spark-{minor_version(version)}"
    jar_set = JarSet(name, wanted.connectors, pinned=wanted.pinned, excluded=_IN_SPARK)
    return sorted(fetch(jar_set, progress=progress, finish=_drop_shipped).glob("*.jar"))


def fetch(jar_set: JarSet, *, progress: Progress = silent, finish: Finish = _leave) -> Path:
    """The folder which holds the set's files, fetched now unless it is complete already.

    ``finish`` may change the folder (unpack an archive, say) before it counts as complete. Raises
    DevStackError when the files cannot be fetched.
    """
    folder = cache_directory() / "jars" / f"{jar_set.name}-{_digest(jar_set)}"
    if is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock"), progress) as lock:
        if not is_complete(folder):
            _fetch_into(folder, jar_set, progress=progress, finish=finish, lock=lock)
    return folder


def is_complete(folder: Path) -> bool:
    """True when the folder has its marker and every file the marker lists."""
    try:
        listed: dict[str, int] = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in listed.items())
    except (OSError, ValueError):
        return False


def _drop_shipped(folder: Path) -> None:
    """Remove the jars that are in ``pyspark/jars`` already: a second copy could shadow Spark's own."""
    shipped = {_module_name(jar) for jar in spark_jars_directory().glob("*.jar")}
    for jar in folder.glob("*.jar"):
        if _module_name(jar) in shipped:
            jar.unlink()


def _module_name(jar: Path) -> str:
    match = _JAR_NAME.fullmatch(jar.name)
    return match.group(1) if match else jar.name


def _fetch_into(folder: Path, jar_set: JarSet, *, progress: Progress, finish: Finish, lock: int) -> None:
    work = folder.with_name(folder.name + ".partial")
    files = work / "files"
    shutil.rmtree(files, ignore_errors=True)
    files.mkdir(parents=True)
    _write_ivy_files(work, jar_set)
    _retrieve(work, jar_set, progress=progress, lock=lock)
    finish(files)
    _mark(files)
    shutil.rmtree(folder, ignore_errors=True)  # an older copy that lost its marker or a file
    files.rename(folder)
    shutil.rmtree(work, ignore_errors=True)


def _mark(files: Path) -> None:
    listed = {str(p.relative_to(files)): p.stat().st_size for p in sorted(files.rglob("*")) if p.is_file()}
    (files / MARKER).write_text(json.dumps(listed, indent=1), encoding="utf-8")


def _retrieve(work: Path, jar_set: JarSet, *, progress: Progress, lock: int) -> None:
    command = _ivy_command(work)
    progress(f"{jar_set.name}: fetching jars from Maven Central")
    for attempt in range(1, _ATTEMPTS + 1):
        code, tail = _run(command, jar_set.name, progress=progress, lock=lock)
        if code == 0:
            return
        if attempt < _ATTEMPTS:
            progress(f"{jar_set.name}: not everything arrived, trying again")
    raise DevStackError(
        f"the jars of {jar_set.name} could not be fetched ({', '.join(map(str, jar_set.modules))}). "
        "Is Maven Central reachable? Set https_proxy, or TIDESINK_IVY_SETTINGS to an ivysettings.xml "
        "with your mirror. Ivy said:\n" + "\n".join(tail)
    )


def _run(command: list[str], name: str, *, progress: Progress, lock: int) -> tuple[int, list[str]]:
    tail: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, pass_fds=(lock,)
    ) as process:
        try:
            for line in process.stdout or ():
                text = line.strip(" .\t\n")
                if text.startswith("downloading "):
                    progress(f"{name}: {text.rpartition('/')[2]}")
                elif text:
                    tail = [*tail[-_SHOWN_LINES:], text]
        except BaseException:
            process.kill()  # Ctrl-C must not leave a download running
            raise
    return process.returncode, tail


def _ivy_command(work: Path) -> list[str]:
    ivy = sorted(spark_jars_directory().glob("ivy-*.jar"))
    if not ivy:
        raise ConfigError(f"pyspark ships no Ivy in {spark_jars_directory()}; reinstall pyspark")
    own = os.environ.get("TIDESINK_IVY_SETTINGS")
    settings = Path(own).expanduser() if own else work / "ivysettings.xml"
    if not settings.is_file():
        raise ConfigError(f"TIDESINK_IVY_SETTINGS names {settings}, which is not a file")
    pattern = work / "files" / "[artifact]-[revision](-[classifier]).[ext]"
    return [
        str(find_java().path), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Dsun.net.client.defaultConnectTimeout=20000", "-Dsun.net.client.defaultReadTimeout=60000",
        *_proxy_options(), "-cp", str(ivy[-1]), "org.apache.ivy.Main",
        "-settings", str(settings), "-ivy", str(work / "ivy.xml"), "-cache", str(work / "cache"),
        "-confs", "default", "-retrieve", str(pattern),
    ]  # fmt: skip


def _proxy_options() -> list[str]:
    proxy = urlsplit(os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY") or "")
    if not proxy.hostname:
        return []
    options = [f"-Dhttps.proxyHost={proxy.hostname}", f"-Dhttps.proxyPort={proxy.port or 3128}"]
    bypass = os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    return options + ([f"-Dhttp.nonProxyHosts={bypass.replace(',', '|')}"] if bypass else [])


def _write_ivy_files(work: Path, jar_set: JarSet) -> None:
    (work / "ivy.xml").write_text(_ivy_xml(jar_set), encoding="utf-8")
    # Without poms an archive can be had although its parent pom is not in the repository.
    poms = "true" if jar_set.archive is None else "false"
    (work / "ivysettings.xml").write_text(_SETTINGS.format(poms=poms), encoding="utf-8")


def _ivy_xml(jar_set: JarSet) -> str:
    dependencies = [_dependency(module, jar_set.archive) for module in jar_set.modules]
    excludes = [f"<exclude org={quoteattr(g)} module={quoteattr(n)}/>" for g, n in jar_set.excluded]
    pins = [f"<override {_module('module', p)}/>" for p in jar_set.pinned]
    return "\n".join(
        [
            '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">',
            f'<info organisation="tidesink" module={quoteattr(jar_set.name)}/>',
            '<configurations><conf name="default"/></configurations>',
            "<dependencies>", *dependencies, *excludes, *pins, "</dependencies>",
            "</ivy-module>",
        ]
    )  # fmt: skip


def _dependency(module: Coordinate, archive: Archive | None) -> str:
    attributes = f'{_module("name", module)} conf="default->default"'
    if archive is None:
        return f"<dependency {attributes}/>"
    kind = quoteattr(archive.type)
    return (
        f'<dependency {attributes} transitive="false"><artifact name={quoteattr(module.name)} type={kind} '
        f"ext={kind} m:classifier={quoteattr(archive.classifier)}/></dependency>"
    )


def _module(attribute: str, module: Coordinate) -> str:
    group, name, version = map(quoteattr, module)
    return f"org={group} {attribute}={name} rev={version}"


def _digest(jar_set: JarSet) -> str:
    """Changes with the set's coordinates, so that an upgrade never meets the older jars."""
    return hashlib.sha256(repr(tuple(jar_set)).encode()).hexdigest()[:8]


@contextmanager
def _locked(path: Path, progress: Progress) -> Iterator[int]:
    deadline = time.monotonic() + _LOCK_SECONDS
    with path.open("w") as file:
        told = False
        while not _try_lock(file.fileno()):
            if time.monotonic() > deadline:
                raise DevStackError(f"another process has held {path} for half an hour; end it and try again")
            if not told:
                progress(f"{path.stem}: another process fetches the same jars, waiting for it")
                told = True
            time.sleep(0.2)
        yield file.fileno()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
