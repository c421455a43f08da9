"""Connections kept between requests: what came unasked is nobody's reply."""

import asyncio
from contextlib import suppress

import pytest

from edgewise.engines.http import Endpoint
from edgewise.servers.base import Request

PAUSE = 0.05
"""Long enough that what is written after it comes by itself."""


def said(text: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


class Talkative:
    """Answers each request with its path, and then writes `more`, or the reply again for None.

    It does so after `pause` seconds; then it hangs up if it `leaves`. `asked` are the paths,
    `opened` counts the connections.
    """

    def __init__(self, more: bytes | None, *, pause: float = 0.0, leaves: bool = False) -> None:
        self.more, self.pause, self.leaves = more, pause, leaves
        self.asked: list[str] = []
        self.opened = 0
        self._serving = list[asyncio.Task[None] | None]()

    def replies(self, paths: str, *, after: float = 2 * PAUSE) -> list[str]:
        """What requests for these paths of a letter get, so many seconds after each other."""
        return asyncio.run(self._replies(paths, after))

    async def _replies(self, paths: str, after: float) -> list[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        found: list[str] = []
        try:
            for path in paths:
                found.append((await endpoint.send(Request(f"/{path}"))).decode())
                await asyncio.sleep(after)
        finally:
            await endpoint.close()
            server.close()
            await asyncio.gather(*filter(None, self._serving))
        return found

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self._serving.append(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                self.asked.append(head.split(b" ", 2)[1].decode())
                reply = said(self.asked[-1])
                more = reply if self.more is None else self.more
                for piece in [reply, more] if self.pause else [reply + more]:
                    writer.write(piece)
                    await asyncio.sleep(self.pause)
                if self.leaves:
                    break
        writer.close()


@pytest.mark.parametrize(
    "more",
    [None, b"\r", said("/z")[:20], said("z" * 200_000)],
    ids=["copy", "byte", "part", "much"],
)
@pytest.mark.parametrize("pause", [0.0, PAUSE])
def test_a_second_reply_is_no_reply_to_the_next_request(pause: float, more: bytes | None) -> None:
    """With the first or later: it would be taken for the completion of another prompt."""
    server = Talkative(more, pause=pause)
    assert server.replies("abcd") == server.asked == ["/a", "/b", "/c", "/d"]


def test_a_connection_on_which_nothing_comes_unasked_is_kept() -> None:
    server = Talkative(b"")
    assert server.replies("abcd", after=0.0) == ["/a", "/b", "/c", "/d"]
    assert server.opened == 1


@pytest.mark.parametrize("last", [b"", said("late", "408 Request Timeout")])
def test_a_connection_closed_while_idle_is_not_used_again(last: bytes) -> None:
    """Also where a proxy says why it closes it: that is no reply to the next request."""
    server = Talkative(last, pause=PAUSE, leaves=True)
    assert server.replies("abc") == server.asked == ["/a", "/b", "/c"]
