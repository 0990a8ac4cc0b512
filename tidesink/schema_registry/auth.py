"""Credentials for a schema registry, and how its certificate is checked.

Secrets stay out of every ``repr``, error and URL: credentials inside a URL are moved into
:class:`BasicAuth`, and :func:`hide` removes secrets from whatever a server answers.

Bearer tokens come by OAuth 2.0 client credentials (RFC 6749, section 4.4) when one is needed. The client
authenticates with HTTP Basic (section 2.3.1). A token is cached until shortly before it expires; when a
registry answers 401 in spite of it, a new one is requested, once.
"""

from __future__ import annotations

import re
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, quote, quote_plus, unquote, urlsplit, urlunsplit

import requests

from tidesink.errors import ConfigError, RegistryError

_CREDENTIALS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://|//)?.*@", re.DOTALL)
_URL_FORM = "write http://host:port/path or https://host:port/path"


class Auth:
    """A way to sign a request: this one not at all."""

    def header(self) -> str | None:
        """The value of ``Authorization``, or None to send none."""
        return None

    def secrets(self) -> tuple[str, ...]:
        """Texts which must never be shown."""
        return ()

    def renew(self, refused: str | None) -> bool:  # noqa: ARG002
        """Whether a request that was refused with this header (HTTP 401) may pass with a new one."""
        return False


@dataclass(frozen=True)
class NoAuth(Auth):
    """Requests go out unsigned."""


@dataclass(frozen=True)
class BasicAuth(Auth):
    """User name and password (Confluent Cloud: API key and secret)."""

    username: str
    password: str = field(repr=False)

    def header(self) -> str | None:
        """``Basic`` with both in UTF-8."""
        return f"Basic {self._token()}"

    def secrets(self) -> tuple[str, ...]:
        """The password, as it is and as it travels in headers and URLs."""
        return self._token(), self.password, quote(self.password, safe="")

    def _token(self) -> str:
        return b64encode(f"{self.username}:{self.password}".encode()).decode("ascii")


@dataclass(frozen=True)
class BearerAuth(Auth):
    """A token."""

    token: str = field(repr=False)

    def __post_init__(self) -> None:
        if not (self.token and self.token.isascii() and self.token.isprintable()):
            raise ConfigError(
                "a bearer token is one line of printable ASCII: does its file end in a line break?",
                key="token",
            )

    def header(self) -> str | None:
        """``Bearer`` with the token."""
        return f"Bearer {self.token}"

    def secrets(self) -> tuple[str, ...]:
        """The token."""
        return (self.token,)


@dataclass(frozen=True)
class TlsOptions:
    """How to check the server's certificate, and which one to show it.

    ``ca``: PEM file of authorities; without it the usual ones. ``client_key`` may be left out where
    ``client_cert`` holds the key too. Raises :class:`ConfigError` for a file that is not there.
    """

    ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        for option in ("ca", "client_cert", "client_key"):
            path: Path | None = getattr(self, option)
            if path is not None and not path.is_file():
                raise ConfigError(f"no such file: {path}", key=f"tls.{option.replace('_', '-')}")
        if self.client_key and not self.client_cert:
            raise ConfigError("a client key needs its certificate", key="tls.client-cert")

    def verify_argument(self) -> bool | str:
        """``verify`` as requests takes it."""
        return str(self.ca) if self.verify and self.ca else self.verify

    def cert_argument(self) -> str | tuple[str, str] | None:
        """``cert`` as requests takes it."""
        if self.client_cert is None:
            return None
        return (str(self.client_cert), str(self.client_key)) if self.client_key else str(self.client_cert)


@dataclass(frozen=True)
class Endpoint:
    """One registry: its base URL without credentials, and how to sign in there."""

    url: str
    auth: Auth = NoAuth()

    @classmethod
    def parse(cls, url: str, auth: Auth | None = None) -> Endpoint:
        """Check a URL and move the credentials in it, if any, into ``auth``.

        Raises :class:`ConfigError`, whose text repeats no credentials.
        """
        shown = safe_url(url)
        parts = _split(url.strip(), shown)
        own = _own_auth(parts)
        if own and auth:
            raise ConfigError(f"{shown} carries credentials, and others are configured: keep one", key="url")
        clean = urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), "", ""))
        return cls(clean, own or auth or NoAuth())


def safe_url(url: str) -> str:
    """A URL fit to be shown: credentials, query and fragment are gone, also where it is malformed."""
    return re.split(r"[?#]", _CREDENTIALS.sub(r"\1***@", url), maxsplit=1)[0]


def hide(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret in it replaced by ``***``."""
    for secret in sorted(filter(None, secrets), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _split(url: str, shown: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        # Not raised inside the except: urlsplit's own message repeats a piece of the URL.
        raise ConfigError(f"not the URL of a schema registry: {shown!r}; {_URL_FORM}", key="url")
    if parts.query or parts.fragment:
        raise ConfigError(f"the URL of a schema registry has no query or fragment: {shown}", key="url")
    return parts


def _own_auth(parts: SplitResult) -> BasicAuth | None:
    if parts.username is None:
        return None
    return BasicAuth(unquote(parts.username), unquote(parts.password or ""))


# A token is not used in its last seconds: the request must get there first, and clocks differ.
_MARGIN_SECONDS: Final = 30.0
# RFC 6749 only recommends to say `expires_in`.
_UNSAID_SECONDS: Final = 300.0
_REFUSED: Final = frozenset({400, 401, 403})
_SHOWN: Final = 160


class TokenUnavailableError(OSError):
    """The token endpoint gave no token now, and may later: the transport tries again."""


@dataclass(frozen=True)
class _Token:
    text: str = field(repr=False)
    until: float


@dataclass
class OAuthClient(Auth):
    """Gets its tokens from ``token_url``.

    ``timeout`` in seconds. ``clock`` gives seconds and never runs backwards. Threads may share it.
    Raises ConfigError for a token URL that is none, which repeats no credentials.
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
                f"not the URL of a token endpoint: {safe_url(self.token_url)!r}; write https://host/path "
                "and keep the secret in client-secret",
                key="token-url",
            )

    def header(self) -> str | None:
        """``Bearer`` with a token that still holds.

        Raises:
            RegistryError: the endpoint refuses us; says with which of OAuth's codes.
            TokenUnavailableError: it does not answer.
        """
        with self._lock:
            if self._token is None or self.clock() >= self._token.until:
                self._token = self._fetch()
            return f"Bearer {self._token.text}"

    def secrets(self) -> tuple[str, ...]:
        """The client's secret in its forms, and the token."""
        token = self._token
        return (self.client_secret, quote_plus(self.client_secret), self._basic()) + (
            (token.text,) if token else ()
        )

    def renew(self, refused: str | None) -> bool:
        """Forget the token behind a header that was refused: whether another may do better."""
        with self._lock:
            # Another thread may have got a new one in between, which nobody refused.
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
                "is not trusted: give its authority as oauth.ca, or check the host"
            ) from error
        except OSError as error:
            raise TokenUnavailableError(
                f"the token endpoint {safe_url(self.token_url)} does not answer"
            ) from error
        return self._read(response, asked_at)

    def _read(self, response: requests.Response, asked_at: float) -> _Token:
        body = _json(response)
        if response.status_code in _REFUSED:
            code = hide(str(body.get("error", "no reason given"))[:_SHOWN], self.secrets())
            raise self._problem(
                f"refuses client {self.client_id!r} (HTTP {response.status_code}, {code}): check client-id, "
                "client-secret and scope"
            )
        if response.status_code // 100 != 2:
            raise TokenUnavailableError(
                f"the token endpoint {safe_url(self.token_url)} answers HTTP {response.status_code}"
            )
        token, lasts = body.get("access_token"), body.get("expires_in", _UNSAID_SECONDS)
        if not isinstance(token, str) or not (token and token.isascii() and token.isprintable()):
            raise self._problem("answers without an access_token: is this the token URL?")
        seconds = (
            float(lasts) if isinstance(lasts, int | float | str) and _is_number(lasts) else _UNSAID_SECONDS
        )
        # Of a token that lasts less than a minute the margin takes half, or no request could be made.
        return _Token(token, asked_at + seconds - min(_MARGIN_SECONDS, seconds / 2))

    def _problem(self, what: str) -> RegistryError:
        return RegistryError(f"the token endpoint {what}", url=safe_url(self.token_url))


class _Basic(requests.auth.AuthBase):
    """Signs with what RFC 6749 wants: requests' own leaves out its form encoding."""

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
