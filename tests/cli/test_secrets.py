"""No secret of a config is shown: by any command, in any form, whatever goes wrong, or to other users."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml
from confluent_kafka import Producer
from typer.main import get_command

from tests.certificates import self_signed
from tests.cli.samples import CANAL, KEY, VALUE, capture, run
from tests.command_lines import command_lines_below
from tests.full import FULL, TEST_ALL
from tests.letters import letter_settings, written_letters
from tests.local_server import LocalServer
from tests.servers import create_topics, local_stack
from tests.sessions import SMALL_SPARK
from tests.tls_front import tls_front
from tidesink.cli.main import app
from tidesink.dev.stack import free_ports
from tidesink.errors import TargetError
from tidesink.sinks.targets.lake.storage import Bucket, Storage

# Each secret has this word, so that a part of one is found as well: it, and what base64 makes of it wherever
# it begins.
_FORMS: Final = re.compile(b"sesame|c2VzYW1l|Nlc2FtZ|zZXNhbW")
_PATIENCE_SECONDS: Final = 240.0
# More would keep other tests from the machine.
_AT_ONCE: Final = 4
_TABLE: Final = "shop.t"
_SASL: Final = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "reader",
    "sasl.password": "sesame-kafka",
}


class Servers(NamedTuple):
    """Where configs say that servers are, as host and port, and how to log in; ``topic``: of canal-json."""

    kafka: str
    http: str
    database: str
    topic: str = "app"
    sasl: bool = True
    # Where the MySQL server is, if it is not where Postgres is.
    mysql: str = ""
    # With TLS everywhere.
    tls: bool = False

    @property
    def web(self) -> str:
        """The URL of all that speak HTTP."""
        return f"{'https' if self.tls else 'http'}://{self.http}"

    @property
    def kafka_settings(self) -> dict[str, str]:
        """How to log in to Kafka."""
        if not self.sasl:
            return {}
        return {**_SASL, "security.protocol": "SASL_SSL"} if self.tls else _SASL

    @property
    def mysql_server(self) -> str:
        """Where the MySQL server is."""
        return self.mysql or self.database


def _source(kind: str, at: Servers) -> dict[str, Any]:
    signing = {
        "basic": {"username": "reader", "password": "sesame-registry"},
        "token": {"token": "sesame-token"},
        "oauth": {
            "oauth": {
                "token-url": f"{at.web}/token",
                "client-id": "tide",
                "client-secret": "sesame-client",
            }
        },
    }
    common = {"brokers": at.kafka, "kafka": at.kafka_settings}
    if kind == "canal":
        return {
            **common,
            "protocol": "canal-json",
            "topics": [at.topic],
            "enable-tidb-extension": True,
            "large-message-handle-option": "claim-check",
            "claim-check-storage-uri": "s3://b/p?access-key=k&secret-access-key=sesame-claims"
            f"&endpoint={at.web}",
            "upstream-url": f"mysql+pymysql://reader:sesame-upstream@{at.mysql_server}/",
        }
    registry = {"urls": at.web, "auth": signing[kind]}
    topics = "{schema}_{table}"
    database = f"mysql+pymysql://reader:sesame-source@{at.mysql_server}/"
    found = {**common, "protocol": "flat-avro", "topics": topics, "schema-registry": registry}
    return {**found, "database": database}


def _target(kind: str, at: Servers) -> dict[str, Any]:
    password = {"user": "tide", "password": "sesame-database"}
    tls = {"tls": {"mode": "verify-full"}} if at.tls else {}
    settings: dict[str, dict[str, Any]] = {
        "delta": {"path": "./lake"},
        "postgres": {"url": f"postgresql://{at.database}/shop", **password, **tls},
        "mysql": {"url": f"mysql://{at.mysql_server}", **password, **tls},
        "iceberg": {
            "catalog": "lake",
            "catalog-properties": {"type": "rest", "uri": at.web, "token": "sesame-catalog"},
        },
        "kafka": {
            "brokers": at.kafka,
            "protocol": "flat-avro",
            "topic": "to_{schema}_{table}",
            "kafka": {**_SASL, **at.kafka_settings, "sasl.password": "sesame-other"},
            "schema-registry": {"urls": at.web, "auth": {"token": "sesame-writer"}},
        },
        "http": {
            "url": f"{at.web}/rows?key=sesame-query",
            "headers": {"X-Key": "sesame-header"},
            "auth": {"username": "tide", "password": "sesame-http"},
        },
    }
    return {"type": kind, **settings[kind]}


def _write_config(folder: Path, name: str, at: Servers) -> Path:
    source, _, target = name.partition("-")
    settings = {
        "pipeline": name,
        "source": _source(source, at),
        "target": _target(target, at),
        "defaults": {"bad-record": "dead-letter"},
        "dead-letters": {"errors.deadletterqueue.topic.name": "letters"},
        "retry": {"for": "1s"},
        # Where the state store does not answer, status and its like have nothing else to say.
        "state": f"postgresql+psycopg://tide:sesame-state@{at.database}/s"
        f"{'?sslmode=verify-full' if at.tls else ''}"
        if source == "oauth"
        else "./state",
        "spark": {
            "master": "local[1]",
            "conf": {**SMALL_SPARK, "spark.driver.memory": "700m", "spark.tide.secret": "sesame-spark"},
        },
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


@contextmanager
def _echo() -> Iterator[str]:
    """A server that refuses every request, and answers with all that it was sent; its address."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            # What is secret first: of long answers the beginning is shown.
            first = [self.path, self.headers.get("Authorization", ""), self.headers.get("X-Key", "")]
            said = f"{' '.join(first)}\r\n{self.headers}".encode()
            said += self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(401, "sent " + self.headers.get("Authorization", ""))
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        do_GET = do_POST = do_PUT = do_HEAD = answer  # noqa: N815  (the names http.server looks for)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = LocalServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _servers(kind: str) -> Iterator[Servers]:
    """None that answers, or one that speaks HTTP and stands in the place of all but the databases."""
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    if kind == "silent":
        yield Servers(closed, closed, closed)
        return
    with _echo() as address:
        yield Servers(address, address, closed)


@pytest.mark.parametrize(
    "value",
    [
        '"sesame',
        "sesame: 1",
        "*sesame",
        "!!python/object:sesame 1",
        "!sesame 1",
        '"sesame\\q"',
        "[sesame",
        "{sesame: sesame}",
        "${sesame}",
        '"${file:/no/such}sesame"',
    ],
)
@pytest.mark.parametrize("debug", [False, True])
def test_a_wrong_config_is_refused_without_its_secrets(tmp_path: Path, value: str, debug: bool) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(f"source:\n  kafka:\n    sasl.password: {value}\n", encoding="utf-8")
    result = run(*(["--debug"] if debug else []), "validate", str(file))
    assert result.exit_code == 2
    assert not _FORMS.search(result.output.encode()), result.output
    assert isinstance(result.exception, SystemExit)


# Of any pipeline, each as a process; {config} is the config file.
_COMMANDS: Final = (
    "validate {config}",
    "validate {config} --connect -o json",
    "--debug plan {config}",
    "status {config} -o json",
    f"pause {_TABLE} --config {{config}}",
    f"--debug resume {_TABLE} --accept --config {{config}}",
    *(f"ddl {verb} {_TABLE} --config {{config}}" for verb in ("show", "approve", "reject")),
    f"accept-restored {_TABLE} --config {{config}}",
    *(f"snapshot {verb} {_TABLE} --config {{config}}" for verb in ("start", "pause", "resume", "cancel")),
    f"resync {_TABLE} --config {{config}}",
    "snapshot status {config}",
    f"offsets show {_TABLE} --config {{config}}",
    f"offsets rewind {_TABLE} --to-beginning --config {{config}}",
    "--debug cut list --config {config}",
    "cut show --config {config} -o json",
    f"--debug diff {_TABLE} --values --report {{config}}.report --config {{config}}",
    f"--debug diff {_TABLE} --against {{config}} --config {{config}}",
    "dlq list --config {config} -o json",
    f"--debug dlq show {_TABLE} 0@1 --config {{config}}",
    f"dlq drop {_TABLE} --yes --config {{config}}",
    f"--debug dlq replay {_TABLE} --config {{config}}",
    "ddl list --config {config}",
    "--debug decode --topic app --config {config}",
    "decode --input {capture} --config {config} -o json",
    "encode --input {lines} --register --table-definition {ddl} --config {config}",
    "init {written}",
    "--debug run {config} --until drained --log json",
)
# Each goes the way of another one, with another word: for ``make test-all``.
_AS_OTHERS: Final = (
    *(f"ddl {verb} {_TABLE} --config {{config}}" for verb in ("show", "reject")),
    *(f"snapshot {verb} {_TABLE} --config {{config}}" for verb in ("pause", "resume", "cancel")),
    f"offsets show {_TABLE} --config {{config}}",
    f"dlq drop {_TABLE} --yes --config {{config}}",
    "registry show id:1 --config {config}",
    "registry export --config {config}",
)
_OF_REGISTRIES: Final = (
    "--debug registry list --config {config}",
    "registry show id:1 --config {config}",
    "registry export --config {config}",
    "registry check --table-definition {ddl} --config {config}",
    "--debug registry register --table-definition {ddl} --yes --config {config}",
)
_LINE: Final = {
    "type": "insert",
    "table": {"schema": "shop", "name": "t"},
    "key": {"id": 7},
    "before": None,
    "after": {"id": 7},
    "commit_ts": 1,
    "position": {"topic": "shop_t", "partition": 0, "offset": 1, "index": 0},
}


def test_every_command_is_among_them() -> None:
    # Those of `dev` know no config and no secret.
    assert {*_AS_OTHERS} < {*_COMMANDS, *_OF_REGISTRIES}
    assert {*_named(get_command(app))} == {*map(_name, (*_COMMANDS, *_OF_REGISTRIES))}


def _named(group: Any, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if name == "dev":
            continue
        if hasattr(command, "commands"):
            yield from _named(command, f"{name} ")
        else:
            yield before + name


def _name(command: str) -> str:
    words = command.removeprefix("--debug ").split()
    return " ".join(words[: 2 if words[0] in ("dlq", "ddl", "registry", "snapshot", "offsets", "cut") else 1])


def _captured(source: str) -> str:
    """Records that need the registry, or claim-check storage and the upstream."""
    if source != "canal":
        return capture(KEY, VALUE)
    marks = ({"claimCheckLocation": "s3://b/p/x.json"}, {"onlyHandleKey": True})
    messages = ({**CANAL, "_tidb": {"commitTs": 1, **mark}} for mark in marks)
    return "".join(capture(None, json.dumps(message).encode()) for message in messages)


def _run(words: Sequence[str], folder: Path) -> str:
    """What a command printed; it fails, or finds nothing to do."""
    uri = "kafka://127.0.0.1:1/app?protocol=canal-json&sasl-mechanism=plain&sasl-user=me&sasl-password=sesame"
    done = subprocess.run(
        [sys.executable, "-c", "from tidesink.cli.main import run; run()", *words],
        env={**os.environ, "TIDESINK_SINK_URI": uri},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
        cwd=folder,
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("pipeline", "kind"),
    [
        ("basic-postgres", "silent"),
        pytest.param("basic-kafka", "silent", marks=FULL),
        pytest.param("canal-mysql", "silent", marks=FULL),
        pytest.param("token-http", "echoing", marks=FULL),
        pytest.param("oauth-iceberg", "echoing", marks=FULL),
        pytest.param("canal-http", "echoing", marks=FULL),
    ],
)
def test_no_command_shows_a_secret(kept_classes: bool, tmp_path: Path, pipeline: str, kind: str) -> None:
    source = pipeline.partition("-")[0]
    texts = {
        "capture": _captured(source),
        "lines": json.dumps(_LINE),
        "ddl": "CREATE TABLE shop.t (id int primary key);",
    }
    files = {name: str(tmp_path / name) for name in (*texts, "written")}
    for name, text in texts.items():
        Path(files[name]).write_text(text, encoding="utf-8")
    commands = (*_COMMANDS, *(() if source == "canal" else _OF_REGISTRIES))
    commands = tuple(one for one in commands if TEST_ALL or one not in _AS_OTHERS)
    with (
        _servers(kind) as at,
        ThreadPoolExecutor(_AT_ONCE) as pool,
        command_lines_below(os.getpid()) as seen,
    ):
        config = _write_config(tmp_path, pipeline, at)
        words = [command.format(config=config, **files).split() for command in commands]
        printed = list(pool.map(lambda given: _run(given, tmp_path), words))
    for command, text in zip(commands, printed, strict=True):
        assert not _FORMS.search(text.encode()), f"{command}: {text}"
    # Nothing needs Spark before brokers and state store have answered, except the cuts of a lake.
    assert (b"SparkSubmit" in b"".join(seen)) == pipeline.endswith("-iceberg")
    assert not [line for line in seen if _FORMS.search(line)]
    _check_files(tmp_path)


# Those that speak to each kind of server and start no Spark.
_OF_SERVERS: Final = (
    "--debug validate {config} --connect",
    "--debug status {config}",
    "--debug decode --topic app --config {config}",
    "--debug registry list --config {config}",
)


@pytest.mark.parametrize("kind", ["untrusted", pytest.param("plain", marks=FULL)])
@pytest.mark.parametrize("pipeline", ["oauth-postgres", pytest.param("basic-mysql", marks=FULL)])
def test_no_failure_of_tls_shows_a_secret(tmp_path: Path, pipeline: str, kind: str) -> None:
    """The servers' certificate is not trusted, or they have no TLS where the config wants it."""
    pem = self_signed(tmp_path) if kind == "untrusted" else None
    with (
        tls_front(pem) as kafka,
        tls_front(pem) as http,
        tls_front(pem) as database,
        tls_front(pem, mysql=True) as mysql,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):
        at = Servers(kafka.address, http.address, database.address, mysql=mysql.address, tls=True)
        config = _write_config(tmp_path, pipeline, at)
        words = [command.format(config=config).split() for command in _OF_SERVERS]
        printed = list(pool.map(lambda given: _run(given, tmp_path), words))
    for command, text in zip(_OF_SERVERS, printed, strict=True):
        assert not _FORMS.search(text.encode()), f"{command}: {text}"
    # They were met, and refused.
    met = (kafka, http, *((database,) if pipeline == "oauth-postgres" else (mysql,)))
    assert all(front.asked for front in met)
    assert printed[0].count("Error: ") >= len(met), printed[0]
    _check_files(tmp_path)


def test_no_refusal_of_a_storage_shows_a_secret(tmp_path: Path) -> None:
    """S3 refuses the credentials, in words that are none of S3's, and repeats what it was sent."""
    file, bucket = tmp_path / "capture", Bucket("b", "eu-west-1", "k", "sesame-lake", path_style=True)
    file.write_text(_captured("canal"), encoding="utf-8")
    with _echo() as address:
        config = _write_config(tmp_path, "canal-mysql", Servers(address, address, address))
        said = _run(["--debug", "decode", "--input", str(file), "--config", str(config)], tmp_path)
        storage = Storage(replace(bucket, endpoint=f"http://{address}"))
        with pytest.raises(TargetError) as caught, storage.reading("s3a://b/lake/part.parquet"):
            pass
    assert "claim-check" in said
    said += "".join(traceback.format_exception(caught.value)) + repr(storage) + repr(caught.value.context)
    assert not _FORMS.search(said.encode()), said
    _check_files(tmp_path)


def _check_files(folder: Path) -> None:
    """The config alone has secrets: the state store has none, nor whatever else was written."""
    for path in folder.rglob("*"):
        if path.is_file() and path.suffix != ".yaml":
            assert not _FORMS.search(path.read_bytes()), path


@FULL
@pytest.mark.parametrize("target", ["http", "postgres", "mysql", "iceberg", "kafka"])
def test_a_worker_whose_target_refuses_its_rows_shows_no_secret(
    kept_classes: bool, tmp_path: Path, brokers: str, topic_prefix: str, target: str
) -> None:
    topic = f"{topic_prefix}-secrets"
    create_topics(brokers, {topic: 1})
    _produce(brokers, topic, CANAL)
    with _servers("echoing") as at, command_lines_below(os.getpid()) as seen:
        config = _write_config(
            tmp_path, f"canal-{target}", at._replace(kafka=brokers, topic=topic, sasl=False)
        )
        said = _run(["--debug", "run", str(config), "--until", "drained", "--log", "json"], tmp_path)
        status = _run(["status", str(config), "-o", "json"], tmp_path)
    assert not _FORMS.search((said + status).encode()), said + status
    assert "FAILING" in status
    assert not [line for line in seen if _FORMS.search(line)]
    _check_files(tmp_path)


def _local_config(folder: Path, brokers: str, prefix: str) -> Path:
    """A config whose every part is to be had here: an Iceberg catalog in a folder, and a topic with a row."""
    topic, closed = f"{prefix}-page", f"127.0.0.1:{free_ports(1)[0]}"
    create_topics(brokers, {topic: 1})
    _produce(brokers, topic, CANAL)
    config = _write_config(folder, "canal-iceberg", Servers(brokers, closed, closed, topic=topic, sasl=False))
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    settings["source"] = {
        name: settings["source"][name] for name in ("brokers", "protocol", "topics", "enable-tidb-extension")
    }
    settings["target"]["catalog-properties"] = {
        "type": "hadoop",
        "warehouse": str(folder / "warehouse"),
        "credential": "sesame-credential",
    }
    settings["dead-letters"] = letter_settings(prefix)
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return config


def _produce(brokers: str, topic: str, *rows: Mapping[str, Any]) -> None:
    producer = Producer({"bootstrap.servers": brokers})
    for row in rows:
        producer.produce(topic, json.dumps({**row, "_tidb": {"commitTs": 1}}).encode())
    assert producer.flush(_PATIENCE_SECONDS) == 0


@contextmanager
def _working(config: Path) -> Iterator[Callable[[str], str]]:
    """A worker; gives what waits until it has said something, and returns all that it said."""
    log = config.with_name("log")

    def wait_for(text: str) -> str:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while text not in (said := log.read_text(encoding="utf-8")):
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
        return said

    words = ["-c", "from tidesink.cli.main import run; run()", "--debug", "run", str(config), "--log", "json"]
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, *words], cwd=config.parent, stdout=out, stderr=out)
    try:
        wait_for("batch applied")
        yield wait_for
    finally:
        process.terminate()
        code = process.wait(_PATIENCE_SECONDS)
    # From the first line to the report, and what the JVM says: a container's log has one form.
    lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    assert code == 0, lines
    assert all({"event", "level", "timestamp"} <= line.keys() for line in lines), lines
    assert lines[-1].get("ending") == "stopped", "\n".join(map(str, lines[-8:]))


@FULL
def test_no_dead_letter_shows_a_secret(
    kept_classes: bool, tmp_path: Path, brokers: str, topic_prefix: str
) -> None:
    """A record is put aside, shown, and bad again when it is tried again."""
    config = _local_config(tmp_path, brokers, topic_prefix)
    (topic,) = yaml.safe_load(config.read_text(encoding="utf-8"))["source"]["topics"]
    _produce(brokers, topic, {**CANAL, "data": [{"id": "x", "e": "2"}]})
    commands = (
        "--debug run {config} --until drained --log json",
        "dlq list --config {config} -o json",
        f"--debug dlq show {_TABLE} 0@1 --config {{config}}",
        f"--debug dlq replay {_TABLE} --config {{config}}",
        f"dlq drop {_TABLE} --yes --config {{config}}",
    )
    with command_lines_below(os.getpid()) as seen:
        printed = [_run(command.format(config=config).split(), tmp_path) for command in commands]
    for command, text in zip(commands, printed, strict=True):
        assert not _FORMS.search(text.encode()), f"{command}: {text}"
    # What the commands say of it: its error, and where it is.
    assert "ValueOutOfRangeError" in printed[1]
    assert "ValueOutOfRangeError" in printed[2]
    assert not [line for line in seen if _FORMS.search(line)]
    letters = written_letters(brokers, topic_prefix)
    assert letters
    assert not _FORMS.search(repr(letters).encode())
    _check_files(tmp_path)


@FULL
@pytest.mark.servers
def test_a_worker_that_loses_its_broker_shows_no_secret(
    kept_classes: bool, tmp_path: Path, topic_prefix: str
) -> None:
    with local_stack(tmp_path / "stack") as stack:
        folder = tmp_path / "worker"
        folder.mkdir()
        config = _local_config(folder, stack.addresses.brokers, topic_prefix)
        with _working(config) as wait_for:
            stack.down()
            wait_for("FAILING")
            status = _run(["status", str(config), "-o", "json"], folder)
    said = (folder / "log").read_text(encoding="utf-8")
    assert not _FORMS.search((said + status).encode()), said + status
    assert "FAILING" in status
    _check_files(folder)


@pytest.fixture
def running_worker(
    kept_classes: bool, tmp_path: Path, brokers: str, topic_prefix: str
) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Starts a worker on an Iceberg table with a row, and waits until the row is applied."""
    config = _local_config(tmp_path, brokers, topic_prefix)
    with ExitStack() as closing:

        def start(conf: Mapping[str, str]) -> None:
            settings = yaml.safe_load(config.read_text(encoding="utf-8"))
            settings["spark"]["conf"] |= conf
            config.write_text(yaml.safe_dump(settings), encoding="utf-8")
            closing.enter_context(_working(config))

        yield start


def _pages(port: int) -> dict[str, str]:
    """The pages of Spark that have settings, by their paths."""
    found = dict[str, str]()

    def ask(path: str) -> str:
        with urlopen(f"http://127.0.0.1:{port}{path}", timeout=_PATIENCE_SECONDS) as answer:
            return found.setdefault(path, answer.read().decode())

    (application,) = json.loads(ask("/api/v1/applications"))
    ask("/environment/")
    ask(f"/api/v1/applications/{application['id']}/environment")
    for query in json.loads(ask(f"/api/v1/applications/{application['id']}/sql")):
        ask(f"/SQL/execution/?id={query['id']}")
    return found


@pytest.mark.servers
@pytest.mark.spark
def test_the_pages_of_spark_show_no_secret(running_worker: Callable[[Mapping[str, str]], None]) -> None:
    """They are there for who turns them on (``spark.ui.enabled``)."""
    (port,) = free_ports(1)
    running_worker(
        {
            "spark.ui.enabled": "true",
            "spark.ui.port": str(port),
            "spark.tide.plain": "sesame-plain",
            "spark.hadoop.tide.plain": "sesame-hadoop",
        }
    )
    pages = _pages(port)
    shown = "".join(pages.values())
    for name in ("spark.tide.plain", "tide.plain", "spark.sql.catalog.lake.credential"):
        assert name in shown
    for path, page in pages.items():
        assert not _FORMS.search(page.encode()), path


@pytest.mark.servers
@pytest.mark.spark
def test_spark_has_no_page_unless_it_is_turned_on(
    running_worker: Callable[[Mapping[str, str]], None],
) -> None:
    (port,) = free_ports(1)
    running_worker({"spark.ui.port": str(port)})
    with pytest.raises(URLError):
        _pages(port)
