"""The HTTP server of those that stand in for others in the test's process."""

from __future__ import annotations

from http.server import ThreadingHTTPServer


class LocalServer(ThreadingHTTPServer):
    """One that many threads may connect to at once.

    Of those that come while five wait the library's has the system drop what they send: they try again after
    a second, and one that waits three seconds for its connection has none.
    """

    request_queue_size = 128
