"""The local stack itself: up, again up, status, down, data that stay, busy ports, Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
import requests
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from tests.full import FULL
from tests.servers import create_topics, delete_topic, local_stack
from tidesink.dev.stack import (
    LOOPBACK,
    Broker,
    DevStack,
    Registry,
    _format,
    accepts,
    find_running,
    free_ports,
    running_stack,
    start_of,
)
from tidesink.errors import DevStackError
from tidesink.sinks.spark.jvm import silent

pytestmark = pytest.mark.servers

SCHEMA: Final = {"schema": '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}'}
BIG: Final = b"x" * 10_000_000
# What a process that starts or stops the stack may take on a slow machine.
_SECONDS: Final = 400


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevStack]:
    with local_stack(tmp_path_factory.mktemp("own stack")) as stack:
        yield stack


def _pids(stack: DevStack) -> list[int | None]:
    services = Broker(stack.directory, 0, 0), Registry(stack.directory, 0)
    return [daemon.pid if (daemon := find_running(one.files)) else None for one in services]


def _read_one(brokers: str, topic: str) -> bytes | None:
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": topic, "auto.offset.reset": "earliest",
         "fetch.message.max.bytes": 16_000_000}
    )  # fmt: skip
    try:
        consumer.subscribe([topic])
        message = consumer.poll(240)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def test_both_services_run_and_say_where(stack: DevStack) -> None:
    assert None not in _pids(stack)
    assert running_stack(stack.directory) == stack.addresses


def test_a_second_up_starts_nothing(stack: DevStack) -> None:
    before, said = _pids(stack), list[str]()
    assert stack.up(said.append) == stack.addresses
    assert _pids(stack) == before
    assert [line for line in said if "starting" in line] == []


def test_only_loopback_listens(stack: DevStack) -> None:
    brokers = AdminClient({"bootstrap.servers": stack.addresses.brokers}).list_topics(timeout=120).brokers
    assert [broker.host for broker in brokers.values()] == [LOOPBACK]


def test_topics_are_not_made_by_asking_and_can_be_deleted(stack: DevStack) -> None:
    brokers = stack.addresses.brokers
    admin = AdminClient({"bootstrap.servers": brokers})
    create_topics(brokers, {"to.delete": 2})
    assert admin.list_topics("never.made", timeout=120).topics["never.made"].error is not None
    delete_topic(brokers, "to.delete")
    assert "to.delete" not in admin.list_topics(timeout=120).topics


def test_ten_megabyte_messages_pass(stack: DevStack) -> None:
    brokers = stack.addresses.brokers
    create_topics(brokers, {"big": 1})
    producer = Producer({"bootstrap.servers": brokers, "message.max.bytes": 16_000_000})
    producer.produce("big", BIG)
    assert producer.flush(60) == 0
    assert _read_one(brokers, "big") == BIG


def test_data_outlive_down_and_other_ports(stack: DevStack, tmp_path: Path) -> None:
    kafka, controller, registry = free_ports(3)
    before = DevStack(tmp_path, kafka_port=kafka, controller_port=controller, registry_port=registry)
    ports = dict(zip(("kafka_port", "controller_port", "registry_port"), free_ports(3), strict=True))
    after = DevStack(tmp_path, **ports)
    try:
        first = before.up()
        create_topics(first.brokers, {"kept": 1})
        producer = Producer({"bootstrap.servers": first.brokers})
        producer.produce("kept", b"value")
        assert producer.flush(60) == 0
        answer = requests.post(f"{first.registry_url}/subjects/kept/versions", json=SCHEMA, timeout=120)
        schema_id = answer.json()["id"]
        with pytest.raises(DevStackError, match=rf"already runs on port {registry}, not"):
            after.up()
        pids = _pids(before)
        assert sorted(before.down()) == ["kafka", "registry"]
        assert [start_of(pid) for pid in pids if pid] == [None, None]
        second = after.up()
        assert _read_one(second.brokers, "kept") == b"value"
        kept = requests.get(f"{second.registry_url}/schemas/ids/{schema_id}", timeout=120).json()
        assert "record" in kept["schema"]
    finally:
        before.down()
    assert _pids(after) == [None, None]


@FULL
def test_a_stale_pid_file_is_survived(stack: DevStack) -> None:
    kafka_pid, registry_pid = _pids(stack)
    assert registry_pid is not None
    os.kill(registry_pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while _pids(stack)[1] is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    stack.up()
    assert _pids(stack)[0] == kafka_pid
    assert _pids(stack)[1] != registry_pid
    assert None not in _pids(stack)


@pytest.mark.parametrize("taken", [0, 1, 2], ids=["kafka", "controller", "registry"])
def test_a_busy_port_starts_nothing(tmp_path: Path, taken: int) -> None:
    options = ("--kafka-port", "--controller-port", "--registry-port")
    with socket.create_server((LOOPBACK, 0)) as server:
        ports = free_ports(3)
        ports[taken] = server.getsockname()[1]
        stack = DevStack(tmp_path, kafka_port=ports[0], controller_port=ports[1], registry_port=ports[2])
        with pytest.raises(DevStackError) as caught:
            stack.up()
    assert f"Port {ports[taken]} for the" in str(caught.value)
    assert options[taken] in str(caught.value)
    assert _pids(stack) == [None, None]


def test_one_port_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DevStackError, match="three different ports"):
        DevStack(tmp_path, kafka_port=1, controller_port=1, registry_port=2)


UP: Final = """
import sys
from pathlib import Path
from tidesink.dev.stack import DevStack
kafka, controller, registry = map(int, sys.argv[2:])
stack = DevStack(Path(sys.argv[1]), kafka_port=kafka, controller_port=controller, registry_port=registry)
stack.up(lambda line: print(line, flush=True))
"""


def _interrupted_up(
    stack_directory: Path, moment: str, number: signal.Signals = signal.SIGINT
) -> tuple[DevStack, list[int]]:
    """Ctrl-C, or another signal, to an ``up`` at the moment it says a line that begins so."""
    ports = free_ports(3)
    stack = DevStack(stack_directory, kafka_port=ports[0], controller_port=ports[1], registry_port=ports[2])
    command = [sys.executable, "-c", UP, str(stack_directory), *map(str, ports)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(moment):
                if number == signal.SIGKILL:
                    _wait_for_a_child(process.pid)
                process.send_signal(number)
                break
        _, errors = process.communicate(timeout=_SECONDS)
    assert process.returncode == -number
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    return stack, ports


def _wait_for_a_child(pid: int) -> None:
    deadline = time.monotonic() + 120
    while not Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii"):
        assert time.monotonic() < deadline


@FULL
@pytest.mark.parametrize(
    "moment",
    [
        "registry: starting",
        "kafka: starting",
        "registry: ready",
    ],
)
def test_ctrl_c_while_starting_leaves_nothing_running(tmp_path: Path, moment: str) -> None:
    stack, ports = _interrupted_up(tmp_path, moment)
    assert _pids(stack) == [None, None]
    assert [accepts(port) for port in ports] == [False] * 3


@FULL
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_an_end_while_formatting_leaves_nothing_broken(tmp_path: Path, number: signal.Signals) -> None:
    """A killed ``up`` leaves Kafka's own tool at work beside the next one."""
    stack, _ = _interrupted_up(tmp_path, "kafka: formatting", number)
    assert _pids(stack) == [None, None]
    try:
        stack.up()
        assert None not in _pids(stack)
    finally:
        stack.down()


def _broker(directory: Path) -> Broker:
    return Broker(directory, *free_ports(2))


def _files(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@FULL
def test_a_data_folder_on_another_disk_is_formatted_and_serves(tmp_path: Path) -> None:
    disk = Path("/dev/shm")  # noqa: S108
    if not disk.is_dir() or disk.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this system has no second disk")
    with TemporaryDirectory(dir=disk) as other:
        (tmp_path / "kafka").mkdir()
        (tmp_path / "kafka" / "data").symlink_to(other)
        with local_stack(tmp_path) as stack:
            create_topics(stack.addresses.brokers, {"there": 1})
        assert {"meta.properties", "there-0"} <= {path.name for path in Path(other).iterdir()}
    assert sorted(path.name for path in (tmp_path / "kafka").iterdir()) == ["data", "server.properties"]


def test_what_an_interrupted_format_left_is_replaced(tmp_path: Path) -> None:
    """Whatever Kafka's tool had made by then."""
    data = tmp_path / "kafka" / "data"
    _broker(tmp_path).prepare(silent)
    whole = _files(data)
    (data / "meta.properties").unlink()
    for left in whole.keys() - {"meta.properties"}:
        (data / left).write_bytes(b"half of it")
    _broker(tmp_path).prepare(silent)
    again = _files(data)
    assert again.keys() == whole.keys()
    assert b"half of it" not in again.values()


@pytest.mark.parametrize("partition", ["orders-0", "__cluster_metadata-0"])
def test_topics_whose_cluster_is_not_known_are_left_alone(tmp_path: Path, partition: str) -> None:
    data = tmp_path / "kafka" / "data"
    (data / partition).mkdir(parents=True)
    (data / partition / "00000000000000000000.log").write_bytes(b"records")
    before = _files(data)
    with pytest.raises(
        DevStackError, match=r"has topics, but their file meta\.properties is missing\. Restore the file"
    ):
        _broker(tmp_path).prepare(silent)
    assert _files(data) == before


def test_a_format_that_does_not_end_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexec sleep 60\n")
    java.chmod(0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="21"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    with pytest.raises(DevStackError, match=r"did not format its storage .* within 0 s"):
        _format(tmp_path, tmp_path / "server.properties", seconds=0.2)


@FULL
def test_two_at_once_start_one_stack(tmp_path: Path) -> None:
    ports = free_ports(3)
    stack = DevStack(tmp_path, kafka_port=ports[0], controller_port=ports[1], registry_port=ports[2])
    command = [sys.executable, "-c", UP, str(tmp_path), *map(str, ports)]
    try:
        both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        said = [process.communicate(timeout=_SECONDS)[0] for process in both]
        assert [process.returncode for process in both] == [0, 0]
        assert "".join(said).count("kafka: starting") == 1
    finally:
        assert sorted(stack.down()) == ["kafka", "registry"]
