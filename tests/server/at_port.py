"""The application over given models at a port: for what happens while an answer is written."""

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from edgewise.listening.server import Listener
from edgewise.listening.sockets import listen
from edgewise.server.answering import Answering
from edgewise.server.app import make_app
from edgewise.server.callers import Callers
from edgewise.server.models import Models


@contextmanager
def at_port(
    answering: Answering, *, api_key: str | None = None, callers: Callers | None = None
) -> Iterator[str]:
    """Serve until the block ends; yields the URL."""
    listening = listen("127.0.0.1", 0)
    made = make_app(Models([answering]), callers=callers or Callers(api_key=api_key))
    server = Listener(made, listening, connections=100, grace=0)
    thread = threading.Thread(target=lambda: asyncio.run(server.listen()))
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive()
        answering.close()
