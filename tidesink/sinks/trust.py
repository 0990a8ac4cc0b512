"""The certificate authorities this machine trusts, as a key store that Java can read.

A Java from PyPI brings its own authorities and knows nothing of those that an administrator has added to
the machine (a company's proxy, say), so that downloads which work with pip fail in Java.

Format: JKS version 2 as OpenJDK's ``sun.security.provider.JavaKeyStore`` reads it; trusted certificates
only. Its password protects nothing here: the file holds public certificates.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

PASSWORD: Final = "changeit"  # noqa: S105 - Java's own default, and no secret
_NAMED_BY: Final = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT")
_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS, BSD
)
_PEM: Final = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_MAGIC: Final = 0xFEEDFEED
_VERSION: Final = 2
_TRUSTED_CERTIFICATE: Final = 2
_SALT: Final = b"Mighty Aphrodite"


def write_trust_store(path: Path) -> list[str]:
    """Write the machine's authorities to ``path``; the JVM options which make Java trust them."""
    path.write_bytes(jks(machine_authorities()))
    return [
        f"-Djavax.net.ssl.trustStore={path}",
        "-Djavax.net.ssl.trustStoreType=JKS",
        f"-Djavax.net.ssl.trustStorePassword={PASSWORD}",
    ]


def machine_authorities() -> list[bytes]:
    """The DER certificates of certifi, of the system's bundles, and of those the environment names."""
    from requests.utils import DEFAULT_CA_BUNDLE_PATH

    named = [os.environ.get(name) for name in _NAMED_BY]
    bundles = [DEFAULT_CA_BUNDLE_PATH, ssl.get_default_verify_paths().cafile, *_BUNDLES, *named]
    # A dict, since bundles overlap and a key store's order should not change from run to run.
    return list(dict.fromkeys(der for bundle in bundles if bundle for der in _certificates(Path(bundle))))


def jks(certificates: Iterable[bytes]) -> bytes:
    """A JKS file which trusts the DER certificates."""
    entries = [_entry(f"ca{number}", der) for number, der in enumerate(certificates)]
    body = struct.pack(">III", _MAGIC, _VERSION, len(entries)) + b"".join(entries)
    digest = hashlib.sha1(PASSWORD.encode("utf-16-be") + _SALT + body, usedforsecurity=False)
    return body + digest.digest()


def _entry(alias: str, der: bytes) -> bytes:
    head = struct.pack(">I", _TRUSTED_CERTIFICATE) + _text(alias) + struct.pack(">q", 0)
    return head + _text("X.509") + struct.pack(">I", len(der)) + der


def _text(text: str) -> bytes:
    encoded = text.encode("ascii")
    return struct.pack(">H", len(encoded)) + encoded


def _certificates(bundle: Path) -> Iterator[bytes]:
    if not bundle.is_file():
        return
    for block in _PEM.findall(bundle.read_text(encoding="utf-8", errors="replace")):
        yield ssl.PEM_cert_to_DER_cert(block)
