"""Requests to an endpoint: one slice of rows each, tried again as long as it may pass.

Tried again are transport errors, 408, 425, 429 and 5xx, after ``Retry-After`` where the answer has one (in
seconds or as an HTTP date); any other answer but 2xx is final. Redirects are never followed, since our
credentials and the rows would go to whomever an answer names.
"""

from __future__ import annotations

import random
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, unquote, unquote_plus

import requests
from tenacity import RetryCallState, Retrying, retry_if_exception_type

from tidesink.errors import TargetError, TransientTargetError
from tidesink.schema_registry.auth import Auth, NoAuth, TlsOptions, hide, safe_url
from tidesink.schema_registry.transport import Signature, causes_of, retry_after_of

_MEDIA_TYPES: Final = {"json-lines": "application/x-ndjson", "array": "application/json"}
_PASSING: Final = frozenset({408, 425, 429})
_EXCERPT: Final = 200
_FIRST_WAIT: Final = 0.3
# A shorter part of a header or a query (a number, a flag) is no secret, and would be cut out of any text.
_LEAST_SECRET: Final = 4


@dataclass(frozen=True)
class Endpoint:
    """Where a table's rows go and how; goes to the executors as it is. Times in seconds."""

    url: str = field(repr=False)  # what stands behind ? may be a secret
    method: str
    format: str
    headers: Mapping[str, str] = field(repr=False)
    auth: Auth = field(default_factory=NoAuth, repr=False)
    tls: TlsOptions = field(default_factory=TlsOptions)
    timeout: float = 30.0
    attempts: int = 5
    longest_wait: float = 60.0

    @property
    def shown(self) -> str:
        """The URL fit to be shown."""
        return safe_url(self.url)

    def secrets(self) -> tuple[str, ...]:
        """Texts which must never be shown, in the forms in which an answer may repeat them."""
        _, _, query = self.url.partition("?")
        parts = (*(part for value in self.headers.values() for part in _header_parts(value)), *_values(query))
        whole = (*self.auth.secrets(), *self.headers.values(), query)
        return (*whole, *(part for part in parts if len(part) >= _LEAST_SECRET))


def _header_parts(value: str) -> Iterator[str]:
    """The token without its scheme, and the values of a cookie."""
    first, *rest = re.split(r"[\s;,]+", value)
    for part in (first, *rest) if "=" in first else rest:
        yield part
        yield part.partition("=")[2].strip('"')


def _values(query: str) -> Iterator[str]:
    """The values of a query as they are written, as they are meant, and as they travel."""
    for pair in query.split("&"):
        name, _, value = pair.partition("=")
        written = value or name
        meant = unquote_plus(written)
        yield from (written, unquote(written), meant, quote(meant, safe=""))


class _PassingFault(Exception):  # noqa: N818  # never leaves this module
    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry_after = retry_after


class Requests:
    """Sends bodies to one endpoint, one after the other, over one connection; close it when done."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._session = requests.Session()

    def __enter__(self) -> Requests:
        return self

    def __exit__(self, *_error: object) -> None:
        self._session.close()

    def send(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Send a body; returns when the endpoint took it.

        Raises:
            TargetError: the endpoint refuses it for good; names status and the beginning of the answer.
            TransientTargetError: no attempt got an answer that counts.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(_PassingFault), wait=self._wait, stop=self._gives_up, reraise=True
        )
        try:
            retrying(self._attempt, body, headers)
        except _PassingFault as fault:
            attempts = retrying.statistics.get("attempt_number", 1)
            later = "" if fault.retry_after is None else f"; it asks to come back in {fault.retry_after:g} s"
            raise TransientTargetError(
                f"the endpoint did not take a request in {attempts} attempts ({fault.reason}){later}; the "
                "batch is sent again",
                url=self._endpoint.shown,
            ) from fault.__cause__

    def ask(self) -> int:
        """The status of an answer to HEAD, whatever it is; raises as ``send`` where there is none."""
        try:
            return self._request("HEAD", b"", {}).status_code
        except requests.RequestException as exc:
            raise TransientTargetError(self._reason(exc), url=self._endpoint.shown) from exc

    def _attempt(self, body: bytes, headers: Mapping[str, str]) -> None:
        try:
            response = self._request(self._endpoint.method, body, headers)
        except requests.RequestException as exc:
            raise _PassingFault(self._reason(exc)) from exc
        status = response.status_code
        if 200 <= status < 300:
            return
        if status in _PASSING or status >= 500:
            raise _PassingFault(f"HTTP {status}{self._said(response)}", retry_after_of(response))
        if 300 <= status < 400:
            where = safe_url(response.headers.get("Location", "where it points"))
            raise TargetError(
                f"the endpoint answers HTTP {status}, and redirects are not followed: set target.url to "
                f"{hide(where, self._endpoint.secrets())}",
                url=self._endpoint.shown,
            )
        raise TargetError(
            f"the endpoint refuses a request with HTTP {status}{self._said(response)}: "
            f"{_REMEDIES.get(status, 'correct what it names, here or there')}",
            url=self._endpoint.shown,
        )

    def _request(self, method: str, body: bytes, headers: Mapping[str, str]) -> requests.Response:
        endpoint = self._endpoint
        sent: dict[str, Any] = {
            "Content-Type": _MEDIA_TYPES[endpoint.format],
            "Accept": "application/json",
            **endpoint.headers,
            **headers,
        }
        return self._session.request(
            method,
            endpoint.url,
            data=body,
            headers=sent,
            auth=Signature(endpoint.auth),
            timeout=endpoint.timeout,
            allow_redirects=False,
            verify=endpoint.tls.verify_argument(),
            cert=endpoint.tls.cert_argument(),
        )

    def _said(self, response: requests.Response) -> str:
        text = hide(response.content[:4096].decode("utf-8", "replace"), self._endpoint.secrets())
        line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
        return f" ({line if len(line) <= _EXCERPT else line[:_EXCERPT] + '…'})" if line else ""

    def _reason(self, error: requests.RequestException) -> str:
        if any(isinstance(cause, ssl.SSLCertVerificationError) for cause in causes_of(error)):
            raise TargetError(
                "the endpoint's certificate is not trusted: give its authority as target.tls.ca, or check "
                "the host's name",
                url=self._endpoint.shown,
            ) from error
        if isinstance(error, requests.exceptions.InvalidHeader | requests.exceptions.InvalidURL):
            raise TargetError("target.url or a header cannot be sent", url=self._endpoint.shown) from error
        if isinstance(error, requests.Timeout):
            return f"no answer within {self._endpoint.timeout:g} s"
        return f"no connection: {type(error).__name__}"

    def _wait(self, state: RetryCallState) -> float:
        asked = _fault(state).retry_after
        if asked is not None:
            return asked
        ceiling = min(_FIRST_WAIT * 2**state.attempt_number, self._endpoint.longest_wait)
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311  # jitter

    def _gives_up(self, state: RetryCallState) -> bool:
        asked = _fault(state).retry_after or 0.0
        return state.attempt_number >= self._endpoint.attempts or asked > self._endpoint.longest_wait


_REMEDIES: Final = {
    401: "check target.auth",
    403: "let target.auth's user write there",
    404: "check target.url",
    405: "check target.method",
    413: "lower target.batch-rows",
    415: "check target.format",
}


def _fault(state: RetryCallState) -> _PassingFault:
    error = state.outcome.exception() if state.outcome else None
    assert isinstance(error, _PassingFault)  # noqa: S101  # the only error that is retried
    return error
