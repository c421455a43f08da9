"""What uvicorn hands to every connection, and what ours need besides."""

import socket
from typing import NamedTuple

import uvicorn
from starlette.types import ASGIApp

from edgewise.listening.files import ACCEPTS
from edgewise.listening.seats import Seats
from edgewise.listening.tls import Certificate


class Door(NamedTuple):
    """Where a server listens, and whom it has room for."""

    socket: socket.socket
    seats: Seats
    certificate: Certificate | None = None


class ListenConfig(uvicorn.Config):
    """uvicorn's settings, with the door."""

    def __init__(self, app: ASGIApp, door: Door, *, grace: int = 5) -> None:
        """`grace` seconds for answers under way when the server ends.

        Speaks no protocol yet: `http` and `ws` are for the server to set.
        """
        super().__init__(
            app,
            ws="none",
            backlog=ACCEPTS,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=grace,
        )
        self.door = door
