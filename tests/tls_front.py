"""Servers at which TLS fails: one whose certificate nobody trusts, and one that has no TLS."""

from __future__ import annotations

import socket
import socketserver
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pymysql.constants import CLIENT

# What a Postgres client sends first, where it wants TLS.
_SSL_REQUEST: Final = struct.pack(">II", 8, 80877103)
# What follows the type of a TLS record that begins a handshake.
_HELLO: Final = b"\x16\x03"
_SECONDS: Final = 60.0


@dataclass
class TlsFront:
    """Where it listens, as host and port, and how many of those who came asked for TLS."""

    address: str
    asked: int = field(default=0)


@contextmanager
def tls_front(pem: Path | None, *, mysql: bool = False) -> Iterator[TlsFront]:
    """A server for who speaks TLS at once or asks for it as Postgres's clients do; ``mysql``: as MySQL's do.

    ``pem``: a certificate and its key. None: the server denies TLS, or answers in plain text.
    """
    context = None
    if pem is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.settimeout(_SECONDS)
            with suppress(OSError):
                if mysql:
                    self.request.sendall(mysql_greeting(tls=pem is not None))
                    self.request.recv(4096)
                    front.asked += 1
                elif (first := self.request.recv(2, socket.MSG_PEEK)) and first == _SSL_REQUEST[:2]:
                    self.request.recv(len(_SSL_REQUEST))
                    self.request.sendall(b"N" if context is None else b"S")
                    front.asked += 1
                else:
                    front.asked += first == _HELLO
                if context is not None:
                    context.wrap_socket(self.request, server_side=True).recv(1)
                elif not mysql:
                    self.request.recv(4096)
                    self.request.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        front = TlsFront(f"127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield front
        finally:
            server.shutdown()
            thread.join()


def mysql_greeting(*, tls: bool) -> bytes:
    """The first packet of a MySQL server (protocol 10)."""
    flags = CLIENT.PROTOCOL_41 | CLIENT.SECURE_CONNECTION | CLIENT.PLUGIN_AUTH | (CLIENT.SSL if tls else 0)
    low, high = struct.pack("<I", flags)[:2], struct.pack("<I", flags)[2:]
    rest = b"\x2d\x02\x00" + high + bytes([21]) + bytes(10) + b"b" * 12 + b"\0mysql_native_password\0"
    payload = b"\x0a8.0.36\0" + bytes(4) + b"a" * 8 + b"\0" + low + rest
    return struct.pack("<I", len(payload))[:3] + b"\0" + payload
