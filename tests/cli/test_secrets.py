"""No secret of a config is shown: by any command, in any form, whatever goes wrong, or to other users."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml
from confluent_kafka import Producer
from typer.main import get_command

from tests.cli.samples import CANAL, KEY, VALUE, capture, run
from tests.command_lines import command_lines_below
from tests.full import FULL
from tests.local_server import LocalServer
from tests.servers import create_topics
from tests.sessions import SMALL_SPARK
from tidesink.cli.main import app
from tidesink.dev.stack import free_ports

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
    """Where configs say that servers are, as host and port; ``topic``: of canal-json."""

    kafka: str
    http: str
    database: str
    topic: str = "app"
    sasl: bool = True


def _source(kind: str, at: Servers) -> dict[str, Any]:
    signing = {
        "basic": {"username": "reader", "password": "sesame-registry"},
        "token": {"token": "sesame-token"},
        "oauth": {
            "oauth": {
                "token-url": f"http://{at.http}/token",
                "client-id": "tide",
                "client-secret": "sesame-client",
            }
        },
    }
    common = {"brokers": at.kafka, "kafka": _SASL if at.sasl else {}}
    if kind == "canal":
        return {
            **common,
            "protocol": "canal-json",
            "topics": [at.topic],
            "enable-tidb-extension": True,
            "large-message-handle-option": "claim-check",
            "claim-check-storage-uri": "s3://b/p?access-key=k&secret-access-key=sesame-claims",
            "upstream-url": f"mysql+pymysql://reader:sesame-upstream@{at.database}/",
        }
    registry = {"urls": f"http://{at.http}", "auth": signing[kind]}
    topics = "{schema}_{table}"
    database = f"mysql+pymysql://reader:sesame-source@{at.database}/"
    found = {**common, "protocol": "flat-avro", "topics": topics, "schema-registry": registry}
    return {**found, "database": database}


def _target(kind: str, at: Servers) -> dict[str, Any]:
    password = {"user": "tide", "password": "sesame-database"}
    settings: dict[str, dict[str, Any]] = {
        "delta": {"path": "./lake"},
        "postgres": {"url": f"postgresql://{at.database}/shop", **password},
        "mysql": {"url": f"mysql://{at.database}", **password},
        "iceberg": {
            "catalog": "lake",
            "catalog-properties": {"type": "rest", "uri": f"http://{at.http}", "token": "sesame-catalog"},
        },
        "kafka": {
            "brokers": at.kafka,
            "protocol": "flat-avro",
            "topic": "to_{schema}_{table}",
            "kafka": {**_SASL, "sasl.password": "sesame-other"},
            "schema-registry": {"urls": f"http://{at.http}", "auth": {"token": "sesame-writer"}},
        },
        "http": {
            "url": f"http://{at.http}/rows?key=sesame-query",
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
    f"accept-restored {_TABLE} --config {{config}}",
    *(f"snapshot {verb} {_TABLE} --config {{config}}" for verb in ("start", "pause", "resume", "cancel")),
    "snapshot status {config}",
    f"--debug diff {_TABLE} --values --report {{config}}.report --config {{config}}",
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
    return " ".join(words[: 2 if words[0] in ("dlq", "ddl", "registry", "snapshot") else 1])


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
    # Where the state store does not answer, no worker starts Spark.
    assert (b"SparkSubmit" in b"".join(seen)) == (source != "oauth")
    assert not [line for line in seen if _FORMS.search(line)]
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
    producer = Producer({"bootstrap.servers": brokers})
    producer.produce(topic, json.dumps({**CANAL, "_tidb": {"commitTs": 1}}).encode())
    assert producer.flush(_PATIENCE_SECONDS) == 0
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


@pytest.fixture
def running_worker(
    kept_classes: bool, tmp_path: Path, brokers: str, topic_prefix: str
) -> Iterator[Callable[[Mapping[str, str]], None]]:
    """Starts a worker on an Iceberg table with a row, and waits until the row is applied."""
    topic, started = f"{topic_prefix}-page", list[subprocess.Popen[bytes]]()
    create_topics(brokers, {topic: 1})
    producer = Producer({"bootstrap.servers": brokers})
    producer.produce(topic, json.dumps({**CANAL, "_tidb": {"commitTs": 1}}).encode())
    assert producer.flush(_PATIENCE_SECONDS) == 0
    closed = f"127.0.0.1:{free_ports(1)[0]}"
    config = _write_config(
        tmp_path, "canal-iceberg", Servers(brokers, closed, closed, topic=topic, sasl=False)
    )
    settings = yaml.safe_load(config.read_text(encoding="utf-8"))
    settings["source"] = {
        name: settings["source"][name] for name in ("brokers", "protocol", "topics", "enable-tidb-extension")
    }
    settings["target"]["catalog-properties"] = {
        "type": "hadoop",
        "warehouse": str(tmp_path / "warehouse"),
        "credential": "sesame-credential",
    }

    def start(conf: Mapping[str, str]) -> None:
        settings["spark"]["conf"] |= conf
        config.write_text(yaml.safe_dump(settings), encoding="utf-8")
        words = ["-c", "from tidesink.cli.main import run; run()", "run", str(config), "--log", "json"]
        log = (tmp_path / "log").open("wb")
        started.append(subprocess.Popen([sys.executable, *words], cwd=tmp_path, stdout=log, stderr=log))
        log.close()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while "batch applied" not in (said := (tmp_path / "log").read_text(encoding="utf-8")):
            assert started[-1].poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.2)

    yield start
    for process in started:
        process.terminate()
        process.wait(_PATIENCE_SECONDS)


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
