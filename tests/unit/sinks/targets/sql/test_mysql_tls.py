"""What a MySQL server hears before TLS, under each ``tls.mode``, where it has TLS and where it denies it."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pymysql
import pytest
from pymysql.constants import CLIENT

from tests.tls_front import mysql_greeting
from tidesink.errors import ConfigError, TargetError
from tidesink.sinks.targets.sql.location import Endpoint
from tidesink.sinks.targets.sql.mysql import connect

USER = "tideuser"
_MODES = ("disable", "prefer", "require", "verify-ca", "verify-full")
_SAID_BEFORE_TLS = 32  # bytes of a request for TLS: flags, packet size, charset, and no user


@contextmanager
def _server(*, tls: bool) -> Iterator[tuple[int, list[bytes]]]:
    """A server that greets, and hears one packet: its port, and what it heard."""
    heard: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            connection.sendall(mysql_greeting(tls=tls))
            header = lines.read(4)
            heard.append(lines.read(int.from_bytes(header[:3], "little")) if header else b"")

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        served = pool.submit(serve)
        yield listener.getsockname()[1], heard
        served.result(60)


@pytest.mark.parametrize("tls", [True, False], ids=["server has TLS", "server denies TLS"])
@pytest.mark.parametrize("mode", _MODES)
def test_who_logs_in_is_said_in_plain_text_only_where_the_mode_allows_it(mode: str, tls: bool) -> None:
    with _server(tls=tls) as (port, heard):
        endpoint = Endpoint("127.0.0.1", port, "", USER, "opensesame", tls=mode)
        with pytest.raises(TargetError):
            connect(endpoint)
    (packet,) = heard
    if mode == "disable" or (mode == "prefer" and not tls):
        assert USER.encode() in packet
    elif tls:
        assert len(packet) == _SAID_BEFORE_TLS
        assert struct.unpack("<I", packet[:4])[0] & CLIENT.SSL
    else:
        assert packet == b""


def test_a_driver_that_keeps_to_no_mode_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymysql, "VERSION", (1, 1, 3, "final"))
    with pytest.raises(ConfigError, match=r"unencrypted.*pip install 'pymysql>=1.2'"):
        connect(Endpoint("127.0.0.1", 1, "", USER, "opensesame", tls="verify-full"))
