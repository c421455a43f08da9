"""Pages of others, and names that were made to point here."""

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


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost:8300"}, 200),
        ({"Host": "LOCALHOST"}, 200),
        ({"Host": "[::1]:8300"}, 200),
        ({"Host": "localhost.:8300"}, 200),
        ({"Host": "evil.example:8300"}, 400),
        ({"Host": "127.0.0.1.evil.example"}, 400),
        ({"Host": "[::2]:8300"}, 400),
        ({"Host": "evil.example", "Origin": "http://evil.example"}, 400),
        ({"Origin": "http://127.0.0.1:8300"}, 200),
        ({"Origin": "https://127.0.0.1:8300"}, 200),
        ({"Host": "localhost:8300", "Origin": "http://localhost:8300"}, 200),
        ({"Origin": "http://localhost:8300"}, 403),
        ({"Origin": "http://127.0.0.1:8301"}, 403),
        ({"Origin": "http://127.0.0.1"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "file://"}, 403),
    ],
)
def test_requests_and_websockets_of_others_are_refused(
    headers: dict[str, str], status: int
) -> None:
    headers = {"Host": "127.0.0.1:8300"} | headers
    with client(hosts=HOSTS) as browser:
        for method in ("GET", "POST"):
            assert browser.request(method, "/", headers=headers).status_code == status
        if status == 200:
            with browser.websocket_connect("/ws", headers=headers):
                pass
        else:
            with (
                pytest.raises(WebSocketDisconnect),
                browser.websocket_connect("/ws", headers=headers),
            ):
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


@pytest.mark.parametrize(
    ("given", "spelled"),
    [
        ("https://my.page", "https://my.page"),
        ("HTTPS://My.Page", "https://my.page"),
        ("https://my.page:443", "https://my.page"),
        ("http://my.page:443", "http://my.page:443"),
        ("http://[0:0::0:1]:3000", "http://[::1]:3000"),
        ("moz-extension://0b1c-22", "moz-extension://0b1c-22"),
        ("http://localhost:3000", "http://localhost:3000"),
        ("http://[::1]:80", "http://[::1]"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
        ("*", "*"),
    ],
)
def test_an_origin_is_spelled_as_browsers_do(given: str, spelled: str) -> None:
    assert require_origin(given) == spelled


# These are patterns, and spellings that no browser sends.
NEVER = "chrome-extension://* https://*.my.page http://bücher.example http://a:65536"
BAD = f"{NEVER} foo foo.page foo.page:80 https:// https://a/b https://a/ https://u@a http://a:x http://a:0"


@pytest.mark.parametrize("given", [*BAD.split(), "", "null", "http://a b", "http://a?b", "//a"])
def test_what_no_page_can_have_is_refused(given: str) -> None:
    with pytest.raises(UsageError, match="origin") as caught:
        require_origin(given)
    assert caught.value.setting == "cors_origin"


@pytest.mark.parametrize(
    ("header", "value", "flag"),
    [
        ("Host", "llm.Example.org:8300", "--allow-host llm.example.org"),
        ("Host", "[::2]:8300", "--allow-host ::2"),
        ("Origin", "https://my.page", "--cors-origin https://my.page"),
        # Nothing allows these alone, or they are no names.
        ("Origin", "null", ""),
        ("Host", "a b", ""),
        ("Host", "a" * 9000, ""),
    ],
)
def test_a_refusal_names_the_flag_that_allows_it(header: str, value: str, flag: str) -> None:
    with client(hosts=HOSTS) as browser:
        reply = browser.get("/", headers={header: value})
    told = reply.json()["error"]["message"]
    assert reply.status_code in (400, 403)
    assert flag in told if flag else "--" not in told
    assert len(told) < 300
    if flag:
        name, allowed = flag.split()
        kind = "hosts" if name == "--allow-host" else "origins"
        more = {"hosts": HOSTS, kind: [require_host(allowed)] if kind == "hosts" else [allowed]}
        with client(**more) as browser:
            assert browser.get("/", headers={header: value}).status_code == 200


@pytest.mark.parametrize("given", ["*", "*.my.page", "https://my.page", "my.page:80", "", "a b"])
def test_what_no_host_is_called_is_refused(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        require_host(given)
    assert caught.value.setting == "allow_host"
