"""One request to a registry: addresses in turn, time-outs, retries with full jitter.

Only what may pass is tried again: transport errors, 408, 429 and 5xx. Any other answer is final, also
where a second address is configured.
"""

from __future__ import annotations

import os
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from http.cookiejar import DefaultCookiePolicy
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase
from tenacity import RetryCallState, Retrying, retry_if_exception_type

from tidesink.errors import RegistryError, RegistryUnavailableError
from tidesink.schema_registry.auth import Auth, Endpoint, TlsOptions, TokenUnavailableError, hide

_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_ACCEPT = f"{_MEDIA_TYPE}, application/json"
_EXCERPT_LENGTH = 200


@dataclass(frozen=True)
class Timeouts:
    """Limits in seconds: to get a connection, and between two pieces of an answer."""

    connect: float = 3.0
    read: float = 10.0


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how long to try again.

    Before attempt n+1 the client waits a random time up to ``base_seconds * 2**(n-1)``, at most
    ``longest_wait_seconds``, or as long as ``Retry-After`` says; it gives up before a wait that would end
    more than ``total_seconds`` after the first attempt.
    """

    attempts: int = 5
    base_seconds: float = 0.2
    longest_wait_seconds: float = 5.0
    total_seconds: float = 30.0


@dataclass(frozen=True)
class Answer:
    """What a registry said: HTTP status, parsed JSON (None where it is none), and where it came from."""

    status: int
    body: Any
    text: str = field(repr=False)
    url: str
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def excerpt(self) -> str:
        """The beginning of the answer, fit to be shown."""
        return self.fit(self.text)

    def fit(self, text: str) -> str:
        """A server's words on one short line, without control characters and without our secrets."""
        shown = hide(text, self.secrets)[:4096]
        line = " ".join("".join(c if c.isprintable() else " " for c in shown).split())
        return line if len(line) <= _EXCERPT_LENGTH else f"{line[:_EXCERPT_LENGTH]}…"


@dataclass(frozen=True)
class _Failure:
    """One attempt at one address that may go better later."""

    url: str
    reason: str
    retry_after: float | None = None


class _PassingFault(Exception):  # noqa: N818  # never leaves this module
    def __init__(self, failures: Sequence[_Failure]) -> None:
        super().__init__()
        self.failures = failures

    def retry_after(self) -> float | None:
        """The shortest wait asked for, since one address that is back is enough."""
        return min((f.retry_after for f in self.failures if f.retry_after is not None), default=None)


class Signature(AuthBase):
    """Signs a request; given even without credentials, or requests would look into ~/.netrc."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        header = self._auth.header()
        if header is not None:
            request.headers["Authorization"] = header
        return request


@dataclass
class Transport:
    """Sends requests to the first address that answers, beginning with the one that did last time."""

    endpoints: Sequence[Endpoint]
    tls: TlsOptions = field(default_factory=TlsOptions)
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    sleep: Callable[[float], None] = time.sleep
    _session: requests.Session = field(init=False, repr=False)
    _preferred: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self._session = requests.Session()
        # Cookies are the one thing in a session that threads would write to at the same time.
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=16, max_retries=0))

    def close(self) -> None:
        """Close every connection."""
        self._session.close()

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        """The registry's answer, whatever its status below 500 (not 408, 429).

        Raises :class:`RegistryUnavailableError` when every address failed until the policy gave up, and
        :class:`RegistryError` for a certificate that is not trusted.
        """
        started = time.monotonic()
        retrying = Retrying(
            retry=retry_if_exception_type(_PassingFault),
            wait=self._wait,
            stop=self._gives_up,
            sleep=self.sleep,
            reraise=True,
        )
        try:
            return retrying(self._try_each, method, path, body)
        except _PassingFault as fault:
            attempts = retrying.statistics.get("attempt_number", 1)
            raise self._unavailable(fault, attempts, time.monotonic() - started) from fault.__cause__

    def _try_each(self, method: str, path: str, body: dict[str, Any] | None) -> Answer:
        failures: list[_Failure] = []
        cause: BaseException | None = None
        for index in self._turn():
            endpoint = self.endpoints[index]
            try:
                answer = self._ask(endpoint, method, path, body)
            except OSError as exc:  # every error of requests is one
                failures.append(_Failure(endpoint.url, self._reason(endpoint, exc)))
                cause = exc
                continue
            if isinstance(answer, Answer):
                self._preferred = index
                return answer
            failures.append(answer)
        raise _PassingFault(failures) from cause

    def _turn(self) -> Iterator[int]:
        first = self._preferred
        return ((first + step) % len(self.endpoints) for step in range(len(self.endpoints)))

    def _ask(
        self, endpoint: Endpoint, method: str, path: str, body: dict[str, Any] | None
    ) -> Answer | _Failure:
        response = self._request(endpoint, method, path, body)
        if response.status_code == 401 and endpoint.auth.renew(response.request.headers.get("Authorization")):
            response = self._request(endpoint, method, path, body)
        answer = _answer(response, endpoint)
        if answer.status in {408, 429} or answer.status >= 500:
            said = f" ({answer.excerpt})" if answer.excerpt else ""
            return _Failure(endpoint.url, f"HTTP {answer.status}{said}", retry_after_of(response))
        return answer

    def _request(
        self, endpoint: Endpoint, method: str, path: str, body: dict[str, Any] | None
    ) -> requests.Response:
        return self._session.request(
            method,
            endpoint.url + path,
            json=body,
            headers={"Accept": _ACCEPT, **({"Content-Type": _MEDIA_TYPE} if body is not None else {})},
            auth=Signature(endpoint.auth),
            timeout=(self.timeouts.connect, self.timeouts.read),
            allow_redirects=False,
            verify=self.tls.verify_argument(),
            cert=self.tls.cert_argument(),
        )

    def _reason(self, endpoint: Endpoint, error: OSError) -> str:
        if isinstance(error, TokenUnavailableError):
            return str(error)
        chain = list(causes_of(error))
        if any(isinstance(link, ssl.SSLCertVerificationError) for link in chain):
            raise RegistryError(
                "the certificate of the schema registry is not trusted: give its authority as `ca`, "
                "or check the host name",
                url=endpoint.url,
            ) from error
        if isinstance(error, requests.ConnectTimeout):
            return f"no connection within {self.timeouts.connect:g} s"
        if isinstance(error, requests.Timeout):
            return f"no answer within {self.timeouts.read:g} s"
        return _os_reason(chain) or type(error).__name__

    def _wait(self, state: RetryCallState) -> float:
        asked = _fault(state).retry_after()
        if asked is not None:
            return asked
        ceiling = self.retry.base_seconds * 2 ** (state.attempt_number - 1)
        return random.uniform(0, min(ceiling, self.retry.longest_wait_seconds))  # noqa: S311  # jitter

    def _gives_up(self, state: RetryCallState) -> bool:
        if state.attempt_number >= self.retry.attempts:
            return True
        wait = _fault(state).retry_after() or 0.0
        return (state.seconds_since_start or 0.0) + wait > self.retry.total_seconds

    def _unavailable(self, fault: _PassingFault, attempts: int, seconds: float) -> RegistryUnavailableError:
        reasons = "; ".join(f"{failure.url}: {failure.reason}" for failure in fault.failures)
        later = fault.retry_after()
        asked = "" if later is None else f"; it asks to come back in {later:g} s"
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        return RegistryUnavailableError(
            f"the schema registry gave no usable answer in {tries} over {seconds:.1f} s ({reasons}){asked}: "
            "is it running, and is the URL right?"
        )


def _fault(state: RetryCallState) -> _PassingFault:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, _PassingFault)  # noqa: S101  # the only error that is retried
    return error


def _answer(response: requests.Response, endpoint: Endpoint) -> Answer:
    try:
        body = response.json()
    except ValueError:
        body = None
    text = response.content.decode("utf-8", "replace")
    return Answer(response.status_code, body, text, endpoint.url, endpoint.auth.secrets())


def retry_after_of(response: requests.Response) -> float | None:
    """Seconds from a ``Retry-After`` header in either form, or None."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    aware = when if when.tzinfo else when.replace(tzinfo=timezone.utc)
    return max(0.0, (aware - datetime.now(timezone.utc)).total_seconds())


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """An error and all it wraps: requests and urllib3 keep the cause in args, reason or context."""
    seen: set[int] = set()
    waiting: list[object] = [error]
    while waiting:
        link = waiting.pop(0)
        if not isinstance(link, BaseException) or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        waiting += [*link.args, getattr(link, "reason", None), link.__cause__, link.__context__]


def _os_reason(chain: Sequence[BaseException]) -> str | None:
    for link in chain:
        if isinstance(link, socket.gaierror):
            return "the host name cannot be resolved"
        if isinstance(link, ssl.SSLError):
            return f"TLS failed ({link.reason or type(link).__name__})"
    for link in chain:
        if isinstance(link, OSError) and link.errno:
            return os.strerror(link.errno).lower()
    return None
