"""Pages of others, and names that were made to point here."""

from contextlib import nullcontext

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket, WebSocketDisconnect

from edgewise.errors import UsageError
from edgewise.listening.origins import OriginCheck, require_host, require_origin

HOSTS = ("127.0.0.1", "localhost", "::1")


async def _socket(socket: WebSocket) -> None:
    await socket.accept()
    await socket.close()


def client(*, scheme: str = "http", **guards: object) -> TestClient:
    routes = [
        Route("/", lambda _: PlainTextResponse("hello"), methods=["GET", "POST"]),
        WebSocketRoute("/ws", _socket),
    ]
    guarded = OriginCheck(Starlette(routes=routes), **guards)  # type: ignore[arg-type]
    return TestClient(guarded, base_url=f"{scheme}://127.0.0.1:8300")


ASKED = {
    ("Host", 200): "localhost:8300 LOCALHOST [::1]:8300 localhost.:8300 127.0.0.1:8300",
    ("Host", 400): "evil.example:8300 127.0.0.1.evil.example [::2]:8300",
    ("Origin", 200): "http://127.0.0.1:8300 https://127.0.0.1:8300",
    ("Origin", 403): "http://localhost:8300 http://127.0.0.1:8301 http://127.0.0.1"
    " http://evil.example null file://",
}
ROWS: list[tuple[dict[str, str], int]] = [
    *(({name: value}, status) for (name, status), row in ASKED.items() for value in row.split()),
    ({"Host": "localhost:8300", "Origin": "http://localhost:8300"}, 200),
    ({"Host": "evil.example", "Origin": "http://evil.example"}, 400),
]


@pytest.mark.parametrize(("headers", "status"), ROWS)
def test_requests_and_websockets_of_others_are_refused(
    headers: dict[str, str], status: int
) -> None:
    headers = {"Host": "127.0.0.1:8300"} | headers
    left = nullcontext() if status == 200 else pytest.raises(WebSocketDisconnect)
    with client(hosts=HOSTS) as browser:
        for method in ("GET", "POST"):
            assert browser.request(method, "/", headers=headers).status_code == status
        with left, browser.websocket_connect("/ws", headers=headers):
            pass


def test_a_page_of_plain_http_is_another_than_one_of_tls() -> None:
    with client(scheme="https", hosts=HOSTS) as browser:
        own = {"Origin": "https://127.0.0.1:8300"}
        assert browser.get("/", headers=own).status_code == 200
        plain = {"Origin": "http://127.0.0.1:8300"}
        assert browser.get("/", headers=plain).status_code == 403


def test_origins_that_were_named_may_ask() -> None:
    with client(origins=["https://my.page"]) as browser:
        assert browser.post("/", headers={"Origin": "https://my.page"}).status_code == 200
        assert browser.post("/", headers={"Origin": "https://your.page"}).status_code == 403
    with client(origins=["*"]) as browser:
        assert browser.post("/", headers={"Origin": "https://your.page"}).status_code == 200


SPELLED = {
    "HTTPS://My.Page": "https://my.page",
    "https://my.page:443": "https://my.page",
    "http://[0:0::0:1]:3000": "http://[::1]:3000",
    "http://[::1]:80": "http://[::1]",
}
AS_GIVEN = "https://my.page http://my.page:443 http://localhost:3000 moz-extension://0b1c-22 *"


@pytest.mark.parametrize(
    ("given", "spelled"), [*SPELLED.items(), *((one, one) for one in AS_GIVEN.split())]
)
def test_an_origin_is_spelled_as_browsers_do(given: str, spelled: str) -> None:
    assert require_origin(given) == spelled


# These are patterns, and spellings that no browser sends.
NEVER = "chrome-extension://* https://*.my.page http://bücher.example http://a:65536"
BAD = f"{NEVER} foo foo.page foo.page:80 https:// https://a/b https://a/ https://u@a http://a:x http://a:0"


NAMELESS = {
    "cors_origin": [*BAD.split(), "", "null", "http://a b", "http://a?b", "//a"],
    "allow_host": ["*", "*.my.page", "https://my.page", "my.page:80", "", "a b"],
}


@pytest.mark.parametrize(
    ("setting", "given"), [(name, one) for name, ones in NAMELESS.items() for one in ones]
)
def test_what_no_page_and_no_host_is_called_is_refused(setting: str, given: str) -> None:
    require = require_origin if setting == "cors_origin" else require_host
    with pytest.raises(UsageError) as caught:
        require(given)
    assert caught.value.setting == setting


ALLOWED_BY = [
    ("Host", "llm.Example.org:8300", "--allow-host llm.example.org"),
    ("Host", "[::2]:8300", "--allow-host ::2"),
    ("Origin", "https://my.page", "--cors-origin https://my.page"),
    # Nothing allows these alone, or they are no names.
    *(("Origin", "null", ""), ("Host", "a b", ""), ("Host", "a" * 9000, "")),
]


@pytest.mark.parametrize(("header", "value", "flag"), ALLOWED_BY)
def test_a_refusal_names_the_flag_that_allows_it(header: str, value: str, flag: str) -> None:
    with client(hosts=HOSTS) as browser:
        reply = browser.get("/", headers={header: value})
    told = reply.json()["error"]["message"]
    assert reply.status_code in (400, 403)
    assert flag in told if flag else "--" not in told
    assert len(told) < 300
    if flag:
        allowed = flag.split()[1]
        own = {"hosts": [require_host(allowed)]} if header == "Host" else {"origins": [allowed]}
        with client(**{"hosts": HOSTS, **own}) as browser:
            assert browser.get("/", headers={header: value}).status_code == 200
