"""Who we say we are to a registry, and how its certificate is checked.

A secret is kept out of every ``repr``, error and URL: credentials inside a URL are moved into
:class:`BasicAuth`, and :func:`hide` cuts secrets out of whatever a server says back.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, quote, unquote, urlsplit, urlunsplit

from tidesink.errors import ConfigError

_CREDENTIALS = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://|//)?.*@", re.DOTALL)
_URL_FORM = "write http://host:port/path or https://host:port/path"


class Auth(Protocol):
    """A way to sign a request."""

    def header(self) -> str | None:
        """The value of ``Authorization``, or None to send none."""

    def secrets(self) -> tuple[str, ...]:
        """Texts which must never be shown."""

    def renew(self, refused: str | None) -> bool:
        """Whether a request that was refused with this header (HTTP 401) may pass with a new one."""


@dataclass(frozen=True)
class NoAuth:
    """Requests go out unsigned."""

    def header(self) -> str | None:
        """No header."""
        return None

    def secrets(self) -> tuple[str, ...]:
        """Nothing to hide."""
        return ()

    def renew(self, refused: str | None) -> bool:  # noqa: ARG002  # the protocol's
        """Nothing to renew."""
        return False


@dataclass(frozen=True)
class BasicAuth:
    """User name and password (Confluent Cloud: API key and secret)."""

    username: str
    password: str = field(repr=False)

    def header(self) -> str | None:
        """``Basic`` with both in UTF-8."""
        return f"Basic {self._token()}"

    def secrets(self) -> tuple[str, ...]:
        """The password, as it is and as it travels in headers and URLs."""
        return self._token(), self.password, quote(self.password, safe="")

    def renew(self, refused: str | None) -> bool:  # noqa: ARG002  # the protocol's
        """Nothing to renew."""
        return False

    def _token(self) -> str:
        return b64encode(f"{self.username}:{self.password}".encode()).decode("ascii")


@dataclass(frozen=True)
class BearerAuth:
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

    def renew(self, refused: str | None) -> bool:  # noqa: ARG002  # the protocol's
        """Nothing to renew."""
        return False


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
