"""A TCP proxy that cuts a connection in the middle of a commit."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

# ``unsent``: the commit does not reach the server. ``unanswered``: it does, and the answer is lost.
Cut = Literal["unsent", "unanswered"]


class CommitProxy:
    """Passes bytes on between clients and one server until it is told to cut.

    The commit it cuts is the next one of a connection that has written to the ledger.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.cut: Cut | None = None
        self.cuts = 0
        self._open: list[socket.socket] = []
        self._deaf: socket.socket | None = None
        self._answered = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections, and end those there are."""
        for one in (self._listener, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
            except OSError:
                return
            self._open += [client, server]
            threading.Thread(target=self._requests, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answers, args=(client, server), daemon=True).start()

    def _requests(self, client: socket.socket, server: socket.socket) -> None:
        writes = False
        with suppress(OSError):
            while data := client.recv(65536):
                writes = writes or (b"UPDATE" in data and b"_tidesink_ledger" in data)
                if self.cut is not None and writes and b"COMMIT" in data:
                    how, self.cut, self.cuts = self.cut, None, self.cuts + 1
                    if how == "unanswered":
                        self._send_and_wait(server, data)
                    break
                writes = writes and b"COMMIT" not in data
                server.sendall(data)
        self._end(client, server)

    def _send_and_wait(self, server: socket.socket, data: bytes) -> None:
        """The commit is done when the server answers; the other thread must not pass its answer on."""
        self._deaf = server
        server.sendall(data)
        self._answered.wait(240)

    def _answers(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := server.recv(65536):
                if server is self._deaf:
                    self._answered.set()
                    return
                client.sendall(data)
        self._end(client, server)

    @staticmethod
    def _end(client: socket.socket, server: socket.socket) -> None:
        for one in (client, server):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@contextmanager
def commit_proxy(host: str, port: int) -> Iterator[CommitProxy]:
    """A proxy before a server."""
    proxy = CommitProxy(host, port)
    try:
        yield proxy
    finally:
        proxy.close()
