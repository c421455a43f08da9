"""An address that nobody should connect to."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def visited() -> Iterator[tuple[str, list[object]]]:
    """A URL on this machine, and who connected to it."""
    came: list[object] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def take() -> None:
        while True:
            try:
                one, address = listening.accept()
            except OSError:
                return
            came.append(address)
            one.close()

    taking = threading.Thread(target=take, daemon=True)
    taking.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", came
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        taking.join()
