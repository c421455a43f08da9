"""Sockets of a listener, and the TLS files that it refuses."""

import socket
from pathlib import Path

import pytest
import trustme

from edgewise.errors import UsageError
from edgewise.listening.sockets import listen, tls_context


def test_a_connection_sends_what_is_written_at_once() -> None:
    with listen("127.0.0.1", 0) as found, socket.create_connection(found.getsockname()):
        accepted, _ = found.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("broken", ["garbage", "swapped", "another's key", "a password", "missing"])
def test_a_bad_certificate_is_a_sentence(tmp_path: Path, broken: str) -> None:
    chain, key = tmp_path / "c.pem", tmp_path / "k.pem"
    one, two = (trustme.CA().issue_cert("127.0.0.1") for _ in range(2))
    one.cert_chain_pems[0].write_to_path(chain)
    (two if broken == "another's key" else one).private_key_pem.write_to_path(key)
    if broken == "garbage":
        key.write_text("no key")
    elif broken == "a password":
        key.write_bytes(
            b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nMAA=\n-----END ENCRYPTED PRIVATE KEY-----\n"
        )
    elif broken == "missing":
        key.unlink()
    with pytest.raises(UsageError, match="PEM") as refused:
        tls_context(*((key, chain) if broken == "swapped" else (chain, key)))
    assert str(chain) in str(refused.value)
