"""Jars from Maven Central through the Ivy that Spark itself ships: no Maven on the user's machine.

A set of modules is fetched once into a folder of its own under the cache directory and listed in a
marker file; what has a marker is complete, since the folder is moved into place only at the end. An
interrupted download leaves Ivy's own cache behind and goes on from there. One lock a set keeps two
processes apart; the Ivy process inherits it, so that it holds as long as anybody writes.

The cache is ``$TIDESINK_CACHE``, else ``$XDG_CACHE_HOME/tidesink``, else ``~/.cache/tidesink``.
``TIDESINK_IVY_SETTINGS`` names an ``ivysettings.xml`` of one's own (a mirror, credentials), and
``https_proxy`` and ``SSL_CERT_FILE`` are honoured.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tidesink.errors import ConfigError, DevStackError
from tidesink.sinks.jar_set import JarSet, write_ivy_files
from tidesink.sinks.java import find_java
from tidesink.sinks.spark_versions import (
    connector_set,
    minor_version,
    spark_jars_directory,
    spark_version,
)
from tidesink.sinks.trust import write_trust_store

Progress = Callable[[str], None]

MARKER: Final = "complete.json"
_LOCK_SECONDS: Final = 1800
_ATTEMPTS: Final = 3
_SHOWN_LINES: Final = 25

# Of what Spark ships itself the larger part is not even fetched; drop_shipped removes the rest.
IN_SPARK: Final = (("org.scala-lang", "*"), ("org.slf4j", "*"), ("org.apache.hadoop", "*"))
_JAR_NAME: Final = re.compile(r"(.+?)-\d[^_]*\.jar")

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


def jar_directory() -> Path:
    """Where fetched jars are, each set in a folder of its own."""
    return cache_directory() / "jars"


def spark_connector_jars(*, target: str | None = None, progress: Progress = silent) -> list[Path]:
    """The connector jars for the installed Spark, fetched when not yet here.

    ``target`` is the type of a target, whose own jars come last. Fit for ``spark.jars``: what Spark ships
    itself is left out. Raises ConfigError for a Spark of an unknown version, DevStackError when the jars
    cannot be fetched.
    """
    version = spark_version()
    wanted = connector_set(version)
    name = f"spark-{minor_version(version)}"
    sets = [JarSet(name, wanted.connectors, excluded=IN_SPARK)]
    more = wanted.targets.get(target or "")
    if more:
        sets.append(JarSet(f"{name}-{target}", more, excluded=IN_SPARK))
    fetched = [fetch(jar_set, progress=progress, finish=drop_shipped) for jar_set in sets]
    return [jar for folder in fetched for jar in sorted(folder.glob("*.jar"))]


def all_connector_jars(*, progress: Progress = silent) -> list[Path]:
    """The connector jars of every target for the installed Spark, as each one asks for them."""
    targets = (None, *connector_set(spark_version()).targets)
    found = (spark_connector_jars(target=target, progress=progress) for target in targets)
    return list(dict.fromkeys(jar for jars in found for jar in jars))


def fetch(jar_set: JarSet, *, progress: Progress = silent, finish: Finish = _leave) -> Path:
    """The folder which holds the set's files, fetched now unless it is complete already.

    ``finish`` may change the folder (unpack an archive, say) before it counts as complete. Raises
    DevStackError when the files cannot be fetched.
    """
    folder = jar_directory() / jar_set.folder_name
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


def drop_shipped(folder: Path) -> None:
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
    write_ivy_files(work, jar_set)
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
    progress(f"{jar_set.name}: fetching jars from Maven Central")
    # A Java from PyPI does not know the authorities of this machine; one of the system may know more.
    trust: list[str] = []
    for attempt in range(1, _ATTEMPTS + 1):
        code, tail = _run(_ivy_command(work, trust), jar_set.name, progress=progress, lock=lock)
        if code == 0:
            return
        if attempt < _ATTEMPTS:
            trust = write_trust_store(work / "authorities.jks")
            progress(f"{jar_set.name}: not everything arrived, trying again with the machine's certificates")
    raise DevStackError(
        f"the jars of {jar_set.name} could not be fetched ({', '.join(map(str, jar_set.modules))}). "
        "Is Maven Central reachable? Set https_proxy, SSL_CERT_FILE where a proxy has certificates of its "
        "own, or TIDESINK_IVY_SETTINGS to an ivysettings.xml with your mirror. Ivy said:\n" + "\n".join(tail)
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


def _ivy_command(work: Path, trust: list[str]) -> list[str]:
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
        *_proxy_options(), *trust, "-cp", str(ivy[-1]), "org.apache.ivy.Main",
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
