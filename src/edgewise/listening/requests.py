"""What a request may look like before anybody reads it."""

import re
from http import HTTPStatus

import h11

MAX_HEADER = 16 << 10
"""A request's first line and headers together, bytes."""

MAX_LINE = 8192
"""One of their lines, bytes: as many as the library for WebSockets takes."""

MAX_HEADERS = 100
MAX_METHOD = 32

# A line that ends without CR, or goes on in the next one. A proxy in front that reads such a head
# otherwise sees other requests than this server does.
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\r\n[ \t]")

_REASONS = {
    414: "The address is too long.",
    431: "The headers are too large.",
    501: "The method is unknown.",
    505: "The version of HTTP is unknown.",
}


class Requests(h11.Connection):
    """HTTP/1.1 as a server hears it, within limits.

    h11 itself holds `MAX_HEADER` only for what comes in pieces, and knows neither lines nor counts.
    """

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEADER)
        self.status = 400
        """What the last bad request is answered with."""

    @property
    def reason(self) -> str:
        """The same in a sentence."""
        return _REASONS.get(self.status, "Invalid HTTP request received.")

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """As h11's; raises `RemoteProtocolError` where a request is beyond the limits, too."""
        try:
            if self.their_state is h11.IDLE:
                head = self.trailing_data[0].partition(b"\r\n\r\n")[0]
                if _AMBIGUOUS.search(head):
                    raise h11.RemoteProtocolError("bare LF or folded header")
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check(event)
            elif isinstance(event, h11.EndOfMessage) and event.headers:
                raise h11.RemoteProtocolError("trailers")
        except h11.RemoteProtocolError as error:
            self.status = error.error_status_hint
            begun = self.trailing_data[0]
            if self.status == 431 and begun and b"\n" not in begun[:MAX_LINE]:
                self.status = 414
            raise
        return event

    def refusal(self, status: int, message: str) -> bytes:
        """A whole answer with `status`, after which the connection closes."""
        body = message.encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        reason = HTTPStatus(status).phrase.encode()
        events = (
            h11.Response(status_code=status, headers=headers, reason=reason),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        return b"".join(self.send(event) for event in events)


def _check(request: h11.Request) -> None:
    # "METHOD target HTTP/1.1\r\n" and "name: value\r\n".
    first = len(request.method) + len(request.target) + 12
    lines = [len(name) + len(value) + 4 for name, value in request.headers]
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" in names and (
        b"content-length" in names or request.http_version == b"1.0"
    ):
        raise h11.RemoteProtocolError("ambiguous length")
    if request.http_version not in (b"1.0", b"1.1"):
        raise h11.RemoteProtocolError("unknown version", error_status_hint=505)
    if len(request.method) > MAX_METHOD:
        raise h11.RemoteProtocolError("unknown method", error_status_hint=501)
    if first > MAX_LINE:
        raise h11.RemoteProtocolError("long request line", error_status_hint=414)
    if len(lines) > MAX_HEADERS or max(lines, default=0) > MAX_LINE:
        raise h11.RemoteProtocolError("large headers", error_status_hint=431)
    if first + sum(lines) > MAX_HEADER:
        raise h11.RemoteProtocolError("large headers", error_status_hint=431)
