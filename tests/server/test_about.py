"""Models, health, metrics, documentation, headers: what stands beside the answers."""

import subprocess
import sys

import httpx2

from tests.server.serving import serving


def get(url: str, **more: object) -> httpx2.Response:
    return httpx2.get(url, timeout=60, trust_env=False, **more)  # type: ignore[arg-type]


def test_health_says_what_runs(url: str) -> None:
    found = get(f"{url}/health").json()
    assert (found["status"], found["edge"]) == ("ok", "edge")
    assert found["cloud"]
    assert found["vocabulary"].startswith("all ids")


def test_browsers_are_told_to_load_nothing_from_elsewhere(url: str) -> None:
    for path in ("/", "/page.js", "/page.css", "/v1/models"):
        headers = get(url + path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert "http" not in get(f"{url}/").text.replace("http-equiv", "")


def test_another_host_name_is_refused(url: str) -> None:
    """A page elsewhere whose name was made to point here must not get answers."""
    assert get(f"{url}/v1/models", headers={"Host": "evil.example"}).status_code == 400


def test_other_origins_are_let_in_only_where_told() -> None:
    ask = {"Origin": "https://my.page", "Access-Control-Request-Method": "POST"}
    allowed = "access-control-allow-origin"
    with serving("--threads", "1", "--cors-origin", "https://my.page") as open_to_one:
        path = f"{open_to_one}/v1/chat/completions"
        told = httpx2.options(path, headers=ask, trust_env=False)
        assert told.headers[allowed] == "https://my.page"
        other = httpx2.options(path, headers=ask | {"Origin": "https://x.y"}, trust_env=False)
        assert allowed not in other.headers


def test_without_it_no_origin_is(url: str) -> None:
    response = get(f"{url}/v1/models", headers={"Origin": "https://my.page"})
    assert "access-control-allow-origin" not in response.headers


def test_a_port_that_is_taken_is_told_in_a_sentence(url: str) -> None:
    port = url.rpartition(":")[2]
    command = [sys.executable, "-m", "edgewise", "serve", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert done.stderr.count("\n") == 1
