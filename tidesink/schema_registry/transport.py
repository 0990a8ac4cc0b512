"""HTTP requests to a schema registry: credentials, certificates, several addresses, timeouts and retries.

Secrets are kept out of every ``repr``, error and URL: credentials inside a URL are moved into ``BasicAuth``,
and ``hide`` removes secrets from a server's answers. Bearer tokens are fetched by OAuth 2.0 client
credentials (RFC 6749, section 4.4) when they are needed, and are cached.

Only temporary failures are retried: transport errors, 408, 429 and 5xx. Any other answer is final, even if a
second address is configured.
"""

from __future__ import annotations

import os
import random
import re
import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from functools import partial
from http.cookiejar import DefaultCookiePolicy
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import SplitResult, quote, quote_plus, unquote, urlsplit, urlunsplit

import requests
from requests.adapters import HTTPAdapter
from requests.auth import AuthBase

from tidesink.errors import (
    ConfigError,
    ContextValue,
    RegistryError,
    RegistryUnavailableError,
    SchemaNotFoundError,
)
from tidesink.schema_registry.base import LAST_SECONDS, LeftBehindError, Stop, waited_for

_CREDENTIALS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://|//)?.*@", re.DOTALL)
_URL_FORM = "Write http://host:port/path or https://host:port/path."


class Auth:
    """The credentials of a request. This base class sends none."""

    def header(self) -> str | None:
        """Returns the value of the ``Authorization`` header, or None to omit the header."""
        return None

    def secrets(self) -> tuple[str, ...]:
        """Returns texts that must not appear in messages."""
        return ()

    def renew(self, refused: str | None) -> bool:  # noqa: ARG002
        """Returns True if a request that failed with HTTP 401 may succeed with a new ``Authorization``
        header.

        ``refused``: the header of the failed request.
        """
        return False


@dataclass(frozen=True)
class NoAuth(Auth):
    """Requests without credentials."""


@dataclass(frozen=True)
class BasicAuth(Auth):
    """User name and password. For Confluent Cloud these are an API key and its secret."""

    username: str
    password: str = field(repr=False)

    def header(self) -> str | None:
        """Returns ``Basic`` with the base64 of user name and password in UTF-8."""
        return f"Basic {self._token()}"

    def secrets(self) -> tuple[str, ...]:
        """Returns the password, also in the forms of headers and URLs, so that messages can hide it."""
        return self._token(), self.password, quote(self.password, safe="")

    def _token(self) -> str:
        return b64encode(f"{self.username}:{self.password}".encode()).decode("ascii")


@dataclass(frozen=True)
class BearerAuth(Auth):
    """Authentication with a bearer token."""

    token: str = field(repr=False)

    def __post_init__(self) -> None:
        if not (self.token and self.token.isascii() and self.token.isprintable()):
            raise ConfigError(
                "A bearer token must be one line of printable ASCII. Check that its file does not end in a "
                "line break.",
                key="token",
            )

    def header(self) -> str | None:
        """Returns ``Bearer`` with the token."""
        return f"Bearer {self.token}"

    def secrets(self) -> tuple[str, ...]:
        """Returns the token."""
        return (self.token,)


@dataclass(frozen=True)
class TlsOptions:
    """Verification of the server's certificate, and the client's own certificate.

    Attributes:
        ca: PEM file of certificate authorities. None: the usual authorities.
        client_key: May be None if ``client_cert`` contains the key too.

    Raises:
        ConfigError: A file does not exist, or a client key has no certificate.
    """

    ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        for option in ("ca", "client_cert", "client_key"):
            path: Path | None = getattr(self, option)
            if path is not None and not path.is_file():
                raise ConfigError(
                    f"The file {path} does not exist. Correct the path.",
                    key=f"tls.{option.replace('_', '-')}",
                )
        if self.client_key and not self.client_cert:
            raise ConfigError(
                "A client key is set, but no client certificate. Set tls.client-cert too.",
                key="tls.client-cert",
            )

    def verify_argument(self) -> bool | str:
        """Returns the ``verify`` argument for functions of the requests library."""
        return str(self.ca) if self.verify and self.ca else self.verify

    def cert_argument(self) -> str | tuple[str, str] | None:
        """Returns the ``cert`` argument for functions of the requests library."""
        if self.client_cert is None:
            return None
        return (str(self.client_cert), str(self.client_key)) if self.client_key else str(self.client_cert)


@dataclass(frozen=True)
class Endpoint:
    """One address of a registry: its base URL without credentials, and its credentials."""

    url: str
    auth: Auth = NoAuth()

    @classmethod
    def parse(cls, url: str, auth: Auth | None = None) -> Endpoint:
        """Parse a URL. Credentials in the URL become the endpoint's ``auth``.

        Raises:
            ConfigError: The URL is invalid, or both the URL and ``auth`` have credentials. The message does
                not contain them.
        """
        shown = safe_url(url)
        parts = _split(url.strip(), shown)
        own = _own_auth(parts)
        if own and auth:
            raise ConfigError(
                f"{shown} contains credentials, and other credentials are configured. Remove one of the two.",
                key="url",
            )
        clean = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        return cls(clean, own or auth or NoAuth())


def safe_url(url: str) -> str:
    """Returns a URL without credentials, query and fragment, so that it can be shown.

    The URL may be malformed.
    """
    return re.split(r"[?#]", _CREDENTIALS.sub(r"\1***@", url), maxsplit=1)[0]


def hide(text: str, secrets: Iterable[str]) -> str:
    """Returns the text with every secret replaced by ``***``."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _split(url: str, shown: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        requests.PreparedRequest().prepare_url(url, None)  # rejects host names that urlsplit accepts
    except ValueError:
        sound = False
    if not sound:
        # Not raised inside the except: urlsplit's message contains a part of the URL.
        raise ConfigError(f"{shown!r} is not the URL of a schema registry. {_URL_FORM}", key="url")
    if parts.query or parts.fragment:
        raise ConfigError(
            f"The URL of a schema registry cannot have a query or a fragment: {shown}. Remove it.", key="url"
        )
    return parts


def _own_auth(parts: SplitResult) -> BasicAuth | None:
    if parts.username is None:
        return None
    return BasicAuth(unquote(parts.username), unquote(parts.password or ""))


# A token is not used in the last seconds of its life, because the request must arrive before the token
# expires, and clocks differ.
_MARGIN_SECONDS: Final = 30.0
# Life of a token if the answer has no `expires_in`, which RFC 6749 only recommends.
_UNSAID_SECONDS: Final = 300.0
_REFUSED: Final = frozenset({400, 401, 403})
_SHOWN: Final = 160


class TokenUnavailableError(OSError):
    """The token endpoint returned no token. The request that needs the token is retried."""


@dataclass(frozen=True)
class _Token:
    text: str = field(repr=False)
    until: float


@dataclass
class OAuthClient(Auth):
    """Bearer tokens from an OAuth token endpoint. May be used from several threads.

    Attributes:
        timeout: Seconds to wait for the endpoint.
        clock: Returns monotonic time in seconds.

    Raises:
        ConfigError: The token URL is invalid. The message does not contain credentials.
    """

    token_url: str
    client_id: str
    client_secret: str = field(repr=False)
    scope: str = ""
    tls: TlsOptions = field(default_factory=TlsOptions)
    timeout: float = 10.0
    clock: Callable[[], float] = time.monotonic
    _token: _Token | None = field(default=None, init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.token_url.startswith(("https://", "http://")) or "@" in self.token_url:
            raise ConfigError(
                f"{safe_url(self.token_url)!r} is not the URL of a token endpoint. Use the form "
                "https://host/path. Set the client's secret as client-secret, not in the URL.",
                key="token-url",
            )

    def header(self) -> str | None:
        """Returns ``Bearer`` with a valid token, and fetches a token if necessary.

        Raises:
            RegistryError: The token endpoint refuses the client. The message has OAuth's error code.
            TokenUnavailableError: The token endpoint does not answer.
        """
        with self._lock:
            if self._token is None or self.clock() >= self._token.until:
                self._token = self._fetch()
            return f"Bearer {self._token.text}"

    def secrets(self) -> tuple[str, ...]:
        """Returns the client's secret in all its forms, and the current token."""
        token = self._token
        return (self.client_secret, quote_plus(self.client_secret), self._basic()) + (
            (token.text,) if token else ()
        )

    def renew(self, refused: str | None) -> bool:
        """Drop the current token if a request with it was refused. Returns True if a new token may work."""
        with self._lock:
            # Another thread may already have fetched a new token, which was not refused.
            if self._token is not None and refused == f"Bearer {self._token.text}":
                self._token = None
            return refused is not None

    def _basic(self) -> str:
        pair = f"{quote_plus(self.client_id)}:{quote_plus(self.client_secret)}"
        return b64encode(pair.encode()).decode("ascii")

    def _fetch(self) -> _Token:
        asked_at = self.clock()
        form = {"grant_type": "client_credentials", **({"scope": self.scope} if self.scope else {})}
        try:
            response = requests.post(
                self.token_url,
                data=form,
                headers={"Accept": "application/json"},
                auth=_Basic(self._basic()),
                timeout=self.timeout,
                allow_redirects=False,
                verify=self.tls.verify_argument(),
                cert=self.tls.cert_argument(),
            )
        except requests.exceptions.SSLError as error:
            raise self._problem(
                "has a certificate that is not trusted. Set oauth.ca to the PEM file of its certificate "
                "authority, or check the host name in oauth.token-url."
            ) from error
        except OSError as error:
            raise TokenUnavailableError(
                f"the OAuth token endpoint {safe_url(self.token_url)} does not answer"
            ) from error
        return self._read(response, asked_at)

    def _read(self, response: requests.Response, asked_at: float) -> _Token:
        body = _json(response)
        if response.status_code in _REFUSED:
            code = hide(str(body.get("error", "no reason given"))[:_SHOWN], self.secrets())
            raise self._problem(
                f"refuses client {self.client_id!r} (HTTP {response.status_code}, {code}). Check client-id, "
                "client-secret and scope."
            )
        if response.status_code // 100 != 2:
            raise TokenUnavailableError(
                f"the OAuth token endpoint {safe_url(self.token_url)} answers HTTP {response.status_code}"
            )
        token, lasts = body.get("access_token"), body.get("expires_in", _UNSAID_SECONDS)
        if not isinstance(token, str) or not (token and token.isascii() and token.isprintable()):
            raise self._problem(
                "answers without an access_token. Check that oauth.token-url is the URL of a token endpoint."
            )
        seconds = (
            float(lasts) if isinstance(lasts, int | float | str) and _is_number(lasts) else _UNSAID_SECONDS
        )
        # If a token lasts less than a minute, the margin is half its life. Otherwise such a token could not
        # be used at all.
        return _Token(token, asked_at + seconds - min(_MARGIN_SECONDS, seconds / 2))

    def _problem(self, what: str) -> RegistryError:
        return RegistryError(f"The token endpoint {what}", url=safe_url(self.token_url))


class _Basic(requests.auth.AuthBase):
    """Basic authentication with the client's id and secret form-encoded, as RFC 6749 requires.

    The ``HTTPBasicAuth`` of the requests library does not encode them.
    """

    def __init__(self, pair: str) -> None:
        self._pair = pair

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Basic {self._pair}"
        return request


def _json(response: requests.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _is_number(value: float | str) -> bool:
    try:
        return float(value) > 0
    except ValueError:
        return False


_MEDIA_TYPE = "application/vnd.schemaregistry.v1+json"
_ACCEPT = f"{_MEDIA_TYPE}, application/json"
_EXCERPT_LENGTH = 200


@dataclass(frozen=True)
class Timeouts:
    """Limits in seconds: to connect, and to wait for the next bytes of an answer."""

    connect: float = 3.0
    read: float = 10.0


@dataclass(frozen=True)
class RetryPolicy:
    """The number of attempts and their delays.

    Before attempt n+1, the client waits a random time up to ``base_seconds * 2**(n-1)`` and at most
    ``longest_wait_seconds``, or as long as the ``Retry-After`` header requests. It gives up if the wait would
    end more than ``total_seconds`` after the first attempt.
    """

    attempts: int = 5
    base_seconds: float = 0.2
    longest_wait_seconds: float = 5.0
    total_seconds: float = 30.0


T = TypeVar("T")

# Confluent's error codes (Schema Registry API v1) for a missing subject, version or schema. Apicurio's
# ccompat v7 uses them too.
_NOT_FOUND: Final = frozenset({40401, 40402, 40403})
_SIGN_IN: Final = {
    401: "the credentials are missing or wrong. Check the registry's username and password, or its token.",
    403: "the user lacks permission for this request. Grant it in the registry, or use another user.",
}


@dataclass(frozen=True)
class Answer:
    """A registry's answer: its HTTP status, its body as parsed JSON (None if it is not JSON), and the
    request's URL.

    An answer that does not have the form of Confluent's API probably comes from another service at this URL.
    """

    status: int
    body: Any
    text: str = field(repr=False)
    url: str
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def excerpt(self) -> str:
        """The beginning of the answer as one short line without secrets."""
        return self.fit(self.text)

    def fit(self, text: str) -> str:
        """Shorten a server's text to one line. Control characters and secrets are removed."""
        shown = hide(text, self.secrets)[:4096]
        line = " ".join("".join(c if c.isprintable() else " " for c in shown).split())
        return line if len(line) <= _EXCERPT_LENGTH else f"{line[:_EXCERPT_LENGTH]}…"

    @property
    def said(self) -> str:
        """The registry's error message as one short line without secrets."""
        message = self.body.get("message") if isinstance(self.body, dict) else None
        return self.fit(message) if isinstance(message, str) and message else self.excerpt

    @property
    def error_code(self) -> int | None:
        """The registry's error code, or None if the answer has no such code."""
        code = self.body.get("error_code") if isinstance(self.body, dict) else None
        return code if isinstance(code, int) else None

    @property
    def is_not_found(self) -> bool:
        """True if the registry reports that the requested object does not exist."""
        return self.status == 404 and self.error_code in _NOT_FOUND

    def expect(self, kind: type[T], **context: ContextValue) -> T:
        """Returns the body of a successful answer if it has the expected type.

        Raises:
            RegistryError: The answer is an error, or its body has another type.
        """
        if self.status // 100 != 2:
            raise self.refusal(**context)
        if not isinstance(self.body, kind):
            raise self.not_a_registry()
        return self.body

    def member(self, name: str, kind: type[T]) -> T:
        """Returns one member of a successful answer's JSON object.

        Raises:
            RegistryError: The answer is an error, or the member is missing or has another type.
        """
        body: dict[str, Any] = self.expect(dict)
        value = body.get(name)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.not_a_registry()
        return value

    def refusal(self, **context: ContextValue) -> RegistryError:
        """Returns the error for an answer with an error status."""
        code = self.error_code
        if self.status in _SIGN_IN:
            reason = f"The schema registry answers HTTP {self.status}: {_SIGN_IN[self.status]}"
            return RegistryError(reason, url=self.url, **context)
        if self.is_not_found:
            return SchemaNotFoundError(
                f"The schema registry does not have the requested object: {self.said}",
                url=self.url,
                **context,
            )
        # Confluent's registry responds with code 404 to an unknown path. So the URL's path is wrong.
        if code is None or code == 404:
            return self.not_a_registry()
        reason = f"The schema registry refuses the request (HTTP {self.status}, code {code}): {self.said}"
        return RegistryError(reason, url=self.url, **context)

    def not_a_registry(self) -> RegistryError:
        """Returns the error for an answer that no schema registry would send."""
        shown = f": {self.excerpt}" if self.excerpt else ", without content"
        return RegistryError(
            f"This URL does not answer like a schema registry (HTTP {self.status}{shown}). "
            "Check the URL. It may need a path, such as Apicurio's /apis/ccompat/v7.",
            url=self.url,
        )


@dataclass(frozen=True)
class _Failure:
    """A failed attempt at one address, which may succeed later.

    ``retry_after``: seconds to wait, if the server sent them.
    """

    url: str
    reason: str
    retry_after: float | None = None


class _PassingFault(Exception):  # noqa: N818  # never leaves this module
    def __init__(self, failures: Sequence[_Failure]) -> None:
        super().__init__()
        self.failures = failures

    def retry_after(self) -> float | None:
        """Returns the shortest wait that an address requested, in seconds; None if no address requested one.

        The shortest is used, because one available address is enough.
        """
        return min((f.retry_after for f in self.failures if f.retry_after is not None), default=None)


class Signature(AuthBase):
    """Adds the ``Authorization`` header. Without credentials, it keeps requests from reading ~/.netrc."""

    def __init__(self, auth: Auth) -> None:
        self._auth = auth

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        header = self._auth.header()
        if header is not None:
            request.headers["Authorization"] = header
        return request


@dataclass
class Transport:
    """Sends requests to the first address that answers, beginning with the address that answered last.

    Once ``stop`` is requested, a request ends after at most two seconds and is not retried.
    """

    endpoints: Sequence[Endpoint]
    tls: TlsOptions = field(default_factory=TlsOptions)
    timeouts: Timeouts = field(default_factory=Timeouts)
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    sleep: Callable[[float], None] = time.sleep
    stop: Stop | None = None
    _session: requests.Session = field(init=False, repr=False)
    _preferred: int = field(default=0, init=False, repr=False)

    def __post_init__(self) -> None:
        self._session = requests.Session()
        # Cookies would be the only part of a session that several threads write.
        self._session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(pool_maxsize=16, max_retries=0))

    def close(self) -> None:
        """Closes all connections."""
        self._session.close()

    def send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Answer:
        """Send a request, and retry temporary failures. Returns the registry's answer.

        The answer may be an error with an HTTP status below 500, other than 408 and 429.

        Raises:
            RegistryUnavailableError: Every address failed until the retries ended or a stop was requested.
            RegistryError: The certificate of an address is not trusted.
        """
        started, attempt = time.monotonic(), 0
        while True:
            attempt += 1
            try:
                return self._try_each(method, path, body)
            except _PassingFault as fault:
                seconds, asked = time.monotonic() - started, fault.retry_after()
                pause = self._pause(attempt) if asked is None else asked
                if (
                    attempt >= self.retry.attempts
                    or seconds + (asked or 0.0) > self.retry.total_seconds
                    or self._stops_within(pause)
                ):
                    raise self._unavailable(fault, attempt, seconds) from fault.__cause__

    def _stops_within(self, pause: float) -> bool:
        """Wait ``pause`` seconds before the next attempt. Returns True if a stop was requested meanwhile."""
        if self.stop is not None:
            return self.stop.wait(pause)
        self.sleep(pause)
        return False

    def _try_each(self, method: str, path: str, body: dict[str, Any] | None) -> Answer:
        failures: list[_Failure] = []
        cause: BaseException | None = None
        for index in self._turn():
            endpoint = self.endpoints[index]
            try:
                answer = waited_for(partial(self._ask, endpoint, method, path, body), self.stop)
            except OSError as exc:  # all errors of requests are OSErrors
                failures.append(_Failure(endpoint.url, self._reason(endpoint, exc)))
                cause = exc
                if isinstance(exc, LeftBehindError):
                    break  # the time limit after a stop is for all addresses together
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
            detail = f" ({answer.excerpt})" if answer.excerpt else ""
            return _Failure(endpoint.url, f"HTTP {answer.status}{detail}", retry_after_of(response))
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
        if isinstance(error, LeftBehindError):
            return f"no answer {LAST_SECONDS:g} s after a stop was requested"
        chain = list(causes_of(error))
        if any(isinstance(link, ssl.SSLCertVerificationError) for link in chain):
            raise RegistryError(
                "The certificate of the schema registry is not trusted. Set `ca` under tls to the PEM file "
                "of its certificate authority, or check the host name in the URL.",
                url=endpoint.url,
            ) from error
        if isinstance(error, requests.ConnectTimeout):
            return f"no connection within {self.timeouts.connect:g} s"
        if isinstance(error, requests.Timeout):
            return f"no answer within {self.timeouts.read:g} s"
        return _os_reason(chain) or type(error).__name__

    def _pause(self, attempt: int) -> float:
        ceiling = self.retry.base_seconds * 2 ** (attempt - 1)
        return random.uniform(0, min(ceiling, self.retry.longest_wait_seconds))  # noqa: S311  # jitter

    def _unavailable(self, fault: _PassingFault, attempts: int, seconds: float) -> RegistryUnavailableError:
        reasons = "; ".join(f"{failure.url}: {failure.reason}" for failure in fault.failures)
        later = fault.retry_after()
        asked = "" if later is None else f"; it asks to retry in {later:g} s"
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        return RegistryUnavailableError(
            f"The schema registry did not answer the request in {tries} over {seconds:.1f} s "
            f"({reasons}){asked}. Check that it runs, and that its URL is right."
        )


def _answer(response: requests.Response, endpoint: Endpoint) -> Answer:
    try:
        body = response.json()
    except ValueError:
        body = None
    text = response.content.decode("utf-8", "replace")
    return Answer(response.status_code, body, text, endpoint.url, endpoint.auth.secrets())


def retry_after_of(response: requests.Response) -> float | None:
    """Returns the seconds to wait from a ``Retry-After`` header, which has seconds or a date.

    Returns None if the answer has no such header.
    """
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
    """Yields an error and all errors that it wraps. The libraries requests and urllib3 store causes in args,
    reason or context.
    """
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
