"""Connections kept between requests: what came unasked is nobody's reply."""

import asyncio
import select
from contextlib import suppress
from typing import Any

import pytest

from edgewise.engines.http import Endpoint
from edgewise.servers.base import Request

_OPEN = asyncio.open_connection


def said(text: str, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode()


class Talkative:
    """Answers each request with its path, and then writes `more`, or the reply again for None.

    If that comes `later`, it does so once the reply is taken, and hangs up if it `leaves`. `asked`
    are the paths, `opened` counts the connections.
    """

    def __init__(self, more: bytes | None, *, later: bool = False, leaves: bool = False) -> None:
        self.more, self.later, self.leaves = more, later, leaves
        self.asked: list[str] = []
        self.opened = 0
        self._serving = list[asyncio.Task[None] | None]()
        self._taken = asyncio.Event()
        # Bytes, and an end of them as one more: written, and read by the client's event loop.
        self._written = self._come = 0
        self._writer: Any = None

    def replies(self, paths: str, *, unread: bool = False) -> list[str]:
        """What requests for these paths of a letter get, each sent once all of the last has come.

        With `unread` that is as far as the socket.
        """
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio, "open_connection", self._open)
            return asyncio.run(self._replies(paths, unread=unread))

    async def _replies(self, paths: str, *, unread: bool) -> list[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        endpoint = Endpoint(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        found: list[str] = []
        try:
            for path in paths:
                found.append((await endpoint.send(Request(f"/{path}"))).decode())
                self._taken.set()
                if unread:
                    # The server's turn; the loop looks at no socket before the next one's end.
                    await asyncio.sleep(0)
                    socket = self._writer.get_extra_info("socket")
                    assert select.select([socket], [], [], 5)[0]
                while not (unread or self._come == self._written or self._writer.is_closing()):
                    await asyncio.sleep(0.001)
        finally:
            self._taken.set()
            await endpoint.close()
            server.close()
            await asyncio.gather(*filter(None, self._serving))
        return found

    async def _open(self, *args: Any, **options: Any) -> Any:
        reader, writer = await _OPEN(*args, **options)
        self._writer, self._come = writer, self._written
        feed, end = reader.feed_data, reader.feed_eof

        def fed(data: bytes) -> None:
            self._come += len(data)
            feed(data)

        def ended() -> None:
            self._come += 1
            end()

        reader.feed_data, reader.feed_eof = fed, ended
        return reader, writer

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self._serving.append(asyncio.current_task())
        with suppress(OSError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                self._taken.clear()
                self.asked.append(head.split(b" ", 2)[1].decode())
                reply = said(self.asked[-1])
                more = reply if self.more is None else self.more
                self._written += len(reply + more) + self.leaves
                if self.later:
                    writer.write(reply)
                    await self._taken.wait()
                    writer.write(more)
                else:
                    writer.write(reply + more)
                if self.leaves:
                    break
        writer.close()


@pytest.mark.parametrize(
    "more",
    [None, b"\r", said("/z")[:20], said("z" * 200_000)],
    ids=["copy", "byte", "part", "much"],
)
@pytest.mark.parametrize("later", [False, True])
def test_a_second_reply_is_no_reply_to_the_next_request(later: bool, more: bytes | None) -> None:
    """With the first or later: it would be taken for the completion of another prompt."""
    server = Talkative(more, later=later)
    assert server.replies("abcd") == server.asked == ["/a", "/b", "/c", "/d"]


@pytest.mark.parametrize("more", [None, b"\r", said("late", "408 Request Timeout")])
def test_what_came_unasked_counts_before_the_event_loop_has_read_it(more: bytes | None) -> None:
    """Seen where the processor was busy: the next request's reply, or its error."""
    server = Talkative(more, later=True)
    assert server.replies("abcd", unread=True) == server.asked == ["/a", "/b", "/c", "/d"]
    assert server.opened == 4


def test_a_connection_on_which_nothing_comes_unasked_is_kept() -> None:
    server = Talkative(b"")
    assert server.replies("abcd") == ["/a", "/b", "/c", "/d"]
    assert server.opened == 1


@pytest.mark.parametrize("last", [b"", said("late", "408 Request Timeout")])
def test_a_connection_closed_while_idle_is_not_used_again(last: bytes) -> None:
    """Also where a proxy says why it closes it: that is no reply to the next request."""
    server = Talkative(last, later=True, leaves=True)
    assert server.replies("abc") == server.asked == ["/a", "/b", "/c"]
    assert server.opened == 3
