"""A gateway that ends: nobody who leaves meanwhile takes the others along."""

import asyncio
from typing import Any

from starlette.websockets import WebSocket

from edgewise.gateway.app import Gateway
from edgewise.gateway.connection import Connection
from edgewise.gateway.fleet import Fleet
from edgewise.gateway.sessions import Sessions
from edgewise.keys.keys import ANYBODY, Keys
from tests.gateway.doubles import PlainEngine


class Gone:
    """A device that took the upgrade and left."""

    def __init__(self) -> None:
        self.left = False

    async def receive(self) -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(self, message: Any) -> None:
        if self.left:
            raise OSError("nobody is there")
        self.left = True


def test_who_has_just_left_does_not_end_the_drain() -> None:
    """Found by an attack: the drain failed, and consults of all others were cut off."""

    async def work() -> None:
        fleet = Fleet([PlainEngine()], concurrency=1, queue=1)
        gateway = Gateway(fleet, Keys(None), Sessions(most=9, most_ids=9, idle=9.0))
        gone = Gone()
        socket = WebSocket({"type": "websocket", "headers": []}, gone.receive, gone.send)
        await socket.accept()
        gateway.connections.add(
            Connection(gateway.consults, gateway.sessions, gateway.keys, socket, ANYBODY)
        )
        await gateway.drain()
        assert gateway.draining

    asyncio.run(work())
