"""The machine's authorities, as Java must find them."""

from __future__ import annotations

import hashlib
import ssl
import struct
from pathlib import Path

import pytest

from tidesink.sinks.spark.jvm import jks, machine_authorities, write_trust_store


def _read_jks(data: bytes) -> list[tuple[str, bytes]]:
    """The trusted certificates of a JKS file, its digest checked; a reader written apart from the writer."""
    magic, version, count = struct.unpack_from(">III", data)
    assert (magic, version) == (0xFEEDFEED, 2)
    salt = "changeit".encode("utf-16-be") + b"Mighty Aphrodite"
    assert data[-20:] == hashlib.sha1(salt + data[:-20], usedforsecurity=False).digest()
    entries, at = [], 12
    for _ in range(count):
        assert struct.unpack_from(">I", data, at) == (2,)
        alias, at = _read_text(data, at + 4)
        kind, at = _read_text(data, at + 8)
        [length] = struct.unpack_from(">I", data, at)
        entries.append((f"{kind} {alias}", data[at + 4 : at + 4 + length]))
        at += 4 + length
    assert at == len(data) - 20
    return entries


def _read_text(data: bytes, at: int) -> tuple[str, int]:
    [length] = struct.unpack_from(">H", data, at)
    return data[at + 2 : at + 2 + length].decode(), at + 2 + length


def test_a_key_store_holds_what_was_put_in() -> None:
    assert _read_jks(jks([b"one", b"two" * 1000])) == [("X.509 ca0", b"one"), ("X.509 ca1", b"two" * 1000)]
    assert _read_jks(jks([])) == []


def test_an_authority_named_by_the_environment_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "company.pem"
    bundle.write_text("# our proxy\n" + ssl.DER_cert_to_PEM_cert(b"company") + "\n")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(bundle))
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "missing.pem"))
    found = machine_authorities()
    assert b"company" in found
    assert len(found) == len(set(found))
    assert len(found) > 50, "the public authorities stay trusted beside it"


def test_the_options_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.jks"
    options = write_trust_store(file)
    assert f"-Djavax.net.ssl.trustStore={file}" in options
    assert [der for _, der in _read_jks(file.read_bytes())] == machine_authorities()
