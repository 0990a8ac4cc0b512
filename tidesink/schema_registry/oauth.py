"""Bearer tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4), got when needed and kept.

The client signs in with HTTP Basic (section 2.3.1). A token is kept until shortly before it expires; when
a registry answers 401 in spite of it, a new one is asked for, once.
"""

from __future__ import annotations

import threading
import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote_plus

import requests

from tidesink.errors import ConfigError, RegistryError
from tidesink.schema_registry.auth import TlsOptions, hide, safe_url

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
class OAuthClient:
    """An :class:`~tidesink.schema_registry.auth.Auth` that gets its tokens from ``token_url``.

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
