"""Certificates that openssl makes for a test, and servers behind them."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.scripted_registry import ScriptedRegistry

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def self_signed(folder: Path) -> Path:
    """A certificate of this machine that is its own authority, with its key in the same file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate of this test, and is not here")
    path, key = folder / "both.pem", folder / "both.key"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-days", "2", *names, *_KEY, "-keyout", str(key), "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    path.write_text(path.read_text("ascii") + key.read_text("ascii"), encoding="ascii")
    return path


def served_over_tls(server: ScriptedRegistry, pem: Path, *, client_certificate: bool = False) -> str:
    """The server's URL with https; ``client_certificate``: it wants one of the same authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    if client_certificate:
        context.load_verify_locations(pem)
        context.verify_mode = ssl.CERT_REQUIRED
    server.server.socket = context.wrap_socket(server.server.socket, server_side=True)
    server.scheme = "https"
    return server.url
