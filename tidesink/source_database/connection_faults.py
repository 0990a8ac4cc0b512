"""Faults of connections to database servers: the cause of each fault, and what to do next.

Drivers have no codes for failed connections: psycopg raises libpq's text, and PyMySQL the socket's error.
This module converts both to one code: an SQLSTATE or the server's error number if the server itself refuses,
otherwise a word such as ``refused``.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class ConnectionFault(NamedTuple):
    """The reason why a connection to a database server failed.

    Attributes:
        code: SQLSTATE, error number of the server, or a word such as ``refused``.
        words: The server's message, which contains only names, or empty.
    """

    code: str
    words: str = ""

    @property
    def is_known(self) -> bool:
        """True if this module has an explanation for the code."""
        return self.code in _REASONS

    @property
    def passes(self) -> bool:
        """True if a later attempt may succeed without a change of the config."""
        return _REASONS.get(self.code, _OTHER).passes

    def text(self, names: Mapping[str, str]) -> str:
        """Returns a message with the fault, its cause and the next step.

        ``names`` has the texts to insert: ``server`` (kind and address), ``user`` (empty if unknown), and the
        names of the settings ``url``, ``login``, ``tls`` and ``ca`` in the config.
        """
        reason = _REASONS.get(self.code, _OTHER)
        user = f" {names['user']!r}" if names["user"] else ""
        why = self.words if reason.quotes and self.words else reason.why
        number = f"error {self.code}: " if self.code.isdigit() else ""
        says = reason.says.format(user=user)
        return f"{names['server']} {says} ({number}{why}). {reason.remedy.format(**names)}"


class _Reason(NamedTuple):
    """The texts that explain a fault to the user.

    ``quotes``: True to show the server's message in place of ``why``.
    """

    says: str
    why: str
    remedy: str
    passes: bool = False
    quotes: bool = False


_SILENT: Final = "does not answer"
_REFUSES_USER: Final = "refuses the user{user}"
_REFUSES: Final = "refuses the connection"
_FULL: Final = _Reason(
    _REFUSES,
    "it has no connections left",
    "The connection is retried. If this lasts, raise the server's limit, or close other programs' "
    "connections.",
    passes=True,
    quotes=True,
)
_STARTING: Final = _Reason(
    _REFUSES,
    "it is starting up or shutting down",
    "The connection is retried. If this lasts, check the server's log.",
    passes=True,
    quotes=True,
)
_LOGIN: Final = _Reason(_REFUSES_USER, "access denied", "Check {login}.", quotes=True)
_NO_DATABASE: Final = _Reason(
    _REFUSES,
    "the database does not exist",
    "Check the database's name in {url}, or create it: CREATE DATABASE.",
    quotes=True,
)
_HOST: Final = _Reason(
    _REFUSES_USER,
    "this host may not log in",
    "Configure the server to allow logins from this machine's address, or correct {url}.",
    quotes=True,
)
_PLAIN: Final = _Reason(
    _REFUSES,
    "it requires TLS",
    "Set {tls} to require or verify-full. If it is already set, configure the server to allow this host and "
    "user.",
    quotes=True,
)
_OTHER: Final = _Reason(
    "does not answer, or refuses the connection",
    "no reason given",
    "Check {url}, {login} and the server's log.",
    passes=True,
    quotes=True,
)
_REASONS: Final[Mapping[str, _Reason]] = MappingProxyType(
    {
        "refused": _Reason(
            _SILENT,
            "connection refused",
            "Check that the server runs, and the host and port in {url}.",
            passes=True,
        ),
        "unresolved": _Reason(
            _SILENT,
            "host not found",
            "Check the host in {url}, and that DNS works on this machine.",
            passes=True,
        ),
        "timeout": _Reason(
            _SILENT,
            "timeout",
            "Check the host and port in {url}, and that no firewall blocks the connection.",
            passes=True,
        ),
        "unreachable": _Reason(
            _SILENT,
            "no route to the host",
            "Check the host in {url}, and the network route to it.",
            passes=True,
        ),
        "closed": _Reason(
            _SILENT,
            "the connection was closed",
            "Check the server's log, and that the port in {url} belongs to a database server of this kind.",
            passes=True,
        ),
        "no-tls": _Reason(
            _REFUSES, "it has no TLS", "Enable TLS at the server, or set {tls} to prefer or disable."
        ),
        "certificate": _Reason(
            "cannot be trusted",
            "its certificate fails the check",
            "Set {ca} to the authority that signed it, and use the certificate's host name in {url}.",
        ),
        "certificate-file": _Reason(
            "cannot be checked",
            "a file that {tls} names cannot be read",
            "Check the paths of ca, certificate and key.",
        ),
        "tls": _Reason(
            _SILENT,
            "TLS failed",
            "Check {tls}, and that it allows a TLS version and cipher that the server accepts.",
        ),
        # SQLSTATEs of Postgres (PostgreSQL 15, appendix A).
        "28P01": _Reason(_REFUSES_USER, "password authentication failed", "Check {login}."),
        "no-password": _Reason(_REFUSES_USER, "it asks for a password", "Set {login}."),
        "28000": _LOGIN,
        "no-entry": _HOST._replace(remedy="Add a line for this host, user and database to pg_hba.conf."),
        "no-entry-plain": _PLAIN,
        "3D000": _NO_DATABASE,
        "42501": _Reason(
            _REFUSES_USER,
            "it lacks CONNECT on the database",
            "As the database's owner, run GRANT CONNECT ON DATABASE … TO ….",
            quotes=True,
        ),
        "53300": _FULL,
        "57P03": _STARTING,
        # Numbers of MySQL and MariaDB.
        "1045": _LOGIN,
        "1698": _LOGIN,
        "3118": _LOGIN._replace(remedy="At the server, unlock the account with ALTER USER … ACCOUNT UNLOCK."),
        "1820": _LOGIN._replace(
            remedy="The password has expired. Set a new one with ALTER USER … IDENTIFIED BY."
        ),
        "1862": _LOGIN._replace(
            remedy="The password has expired. Set a new one with ALTER USER … IDENTIFIED BY."
        ),
        "1044": _Reason(
            _REFUSES_USER,
            "it lacks privileges on the database",
            "Grant them with GRANT ALL PRIVILEGES ON … TO ….",
            quotes=True,
        ),
        "1049": _NO_DATABASE,
        "1130": _HOST,
        "1129": _HOST._replace(
            remedy="Too many connection attempts from this host failed. At the server, run FLUSH HOSTS."
        ),
        "3159": _PLAIN,
        "1040": _FULL,
        "1203": _FULL,
        "1226": _FULL,
        "1053": _STARTING,
    }
)


def is_of_connecting(code: str) -> bool:
    """Returns True if an error number of MySQL or MariaDB means a failed connection, not a failed statement.

    For SQLSTATEs it returns False: psycopg reports no SQLSTATE if the connection failed.
    """
    return code.isdigit() and len(code) < _SQLSTATE_LENGTH and code in _REASONS


_SQLSTATE_LENGTH: Final = 5

# libpq's own messages are English unless the program sets a locale. The server's messages are in its
# ``lc_messages`` language. The first pattern that matches a message of any attempt wins, because a server's
# message is more useful than a timeout.
_LIBPQ: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, re.IGNORECASE), code)
    for pattern, code in (
        (r"password authentication failed|authentication failed for user", "28P01"),
        (r"no password supplied|empty password", "no-password"),
        (r"database .* does not exist|no such database", "3D000"),
        (r"role .* (does not exist|is not permitted to log in)|no such user", "28000"),
        (r"permission denied for database", "42501"),
        (
            r"too many (clients|connections)|slots are reserved|no more connections allowed",
            "53300",
        ),
        (
            r"system is (starting up|shutting down|in recovery mode|not yet accepting)"
            r"|not currently accepting connections|not accepting connections",
            "57P03",
        ),
        (r"no pg_hba\.conf entry .*(no encryption|SSL off)", "no-entry-plain"),
        (r"no pg_hba\.conf entry|pg_hba\.conf rejects", "no-entry"),
        (r"does not support SSL, but SSL was required", "no-tls"),
        (
            r"certificate verify failed|does not match host name|self.signed cert|certificate .*expired",
            "certificate",
        ),
        (
            r"(root certificate|certificate|private key) file .*(does not exist|could not|has group)"
            r"|could not (load|read) .*(certificate|private key)",
            "certificate-file",
        ),
        (r"SSL error|SSL SYSCALL error|negotiat", "tls"),
        (r"timeout expired|timed out", "timeout"),
        (
            r"could not translate host name|Name or service not known|name resolution",
            "unresolved",
        ),
        (r"No route to host|Network is unreachable", "unreachable"),
        (r"Connection refused|No such file or directory", "refused"),
        (r"closed the connection|Connection reset|connection is (lost|closed)", "closed"),
    )
)
_ATTEMPT: Final = re.compile(r"connection to server (?:at|on socket) .*? failed: ")
# A server's message begins with its severity (in the server's language), a colon and two spaces.
_OF_SERVER: Final = re.compile(r"^\S+:  (.+)$")


def postgres_fault(error: BaseException) -> ConnectionFault:
    """Returns the reason why psycopg could not connect.

    The fault's text contains no row values. libpq's hints are left out.
    """
    text = str(error).partition("Multiple connection attempts failed")[0]
    lines = [_ATTEMPT.split(entry)[-1].strip() for entry in text.splitlines() if not entry.startswith("\t")]
    tried = [entry.removeprefix("connection failed: ") for entry in lines if entry]
    for pattern, code in _LIBPQ:
        line = next((attempt for attempt in tried if pattern.search(attempt)), None)
        if line is not None:
            return ConnectionFault(code, _words(line))
    return ConnectionFault(
        "other", next((_words(attempt) for attempt in reversed(tried) if _words(attempt)), "")
    )


def _words(line: str) -> str:
    """Returns the Postgres server's message from a line of libpq's error text.

    Returns an empty text if libpq itself wrote the line.
    """
    match = _OF_SERVER.match(line)
    return match[1] if match else ""


_UNREACHABLE: Final = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})
# PyMySQL's code if TLS is required but the server does not support it. Codes of the client, such as a lost
# connection.
_NO_TLS: Final = 2026
_OF_CLIENT: Final = range(2000, 3000)


def mysql_fault(error: BaseException) -> ConnectionFault:
    """Returns the reason why PyMySQL could not connect.

    The fault's text contains only names, no row values.
    """
    cause = getattr(error, "original_exception", None)
    cause = cause if isinstance(cause, OSError) else error
    if isinstance(cause, OSError):
        return ConnectionFault(_of_socket(cause))
    number = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    if number == _NO_TLS:
        return ConnectionFault("no-tls")
    if not number or number in _OF_CLIENT:
        return ConnectionFault("closed")
    return ConnectionFault(str(number), str(error.args[1]) if len(error.args) > 1 else "")


def _of_socket(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return "certificate"
    if isinstance(error, ssl.SSLError):
        return "tls"
    if isinstance(error, socket.gaierror):
        return "unresolved"
    if isinstance(error, TimeoutError):
        return "timeout"
    if isinstance(error, FileNotFoundError | PermissionError):
        return "certificate-file"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return "unreachable" if error.errno in _UNREACHABLE else "closed"
