"""Why a cloud cannot be reached, in words of the user's and not of a library's."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from edgewise.cloud.gateway import GatewayCloud
from edgewise.errors import CloudUnavailable
from edgewise.testing import ByteTokenizer


@contextmanager
def says(reply: bytes) -> Iterator[int]:
    """A port where every connection is answered so, and closed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    peer, _ = listening.accept()
                except OSError:  # it was closed
                    return
                with peer:
                    peer.recv(4096)
                    peer.sendall(reply)

        Thread(target=answer, daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def refusal(url: str) -> str:
    cloud = GatewayCloud(url)
    try:
        with pytest.raises(CloudUnavailable) as refused:
            cloud.check(ByteTokenizer())
    finally:
        cloud.close()
    return str(refused.value)


def test_a_server_without_tls() -> None:
    with says(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        url = f"https://127.0.0.1:{port}"
        assert refusal(url) == (
            f"The cloud at '{url}' cannot be reached (the TLS handshake failed); check the "
            "address: a server without TLS is at http://."
        )


def test_a_server_that_hangs_up() -> None:
    with says(b"") as port:
        url = f"http://127.0.0.1:{port}"
        assert refusal(url) == (
            f"The cloud at '{url}' cannot be reached (it hung up); check the address and that it "
            "runs."
        )
