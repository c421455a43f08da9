"""Models, health, metrics, documentation, headers: what stands beside the answers."""

import subprocess
import sys

import httpx2
import pytest

from tests.server.serving import serving


def get(url: str, **more: object) -> httpx2.Response:
    return httpx2.get(url, timeout=60, trust_env=False, **more)  # type: ignore[arg-type]


def test_models_are_listed_and_found(url: str) -> None:
    ids = [model["id"] for model in get(f"{url}/v1/models").json()["data"]]
    assert {"edgewise", "edgewise:edge", "edgewise:cloud"} <= set(ids)
    for name in (*ids, "edgewise@0.33"):
        assert get(f"{url}/v1/models/{name}").json()["id"] == name
    assert get(f"{url}/v1/models/other").status_code == 404


def test_health_says_what_runs(url: str) -> None:
    found = get(f"{url}/health").json()
    assert (found["status"], found["edge"]) == ("ok", "edge")
    assert found["cloud"]
    assert found["vocabulary"].startswith("all ids")


ANSWERED = "<|user|>Tell me about copper.<|end|><|assistant|>"


def test_metrics_count_tokens_by_source(url: str) -> None:
    ask = {"model": "edgewise:edge", "prompt": ANSWERED, "max_tokens": 3}

    def counted() -> float:
        lines = get(f"{url}/metrics").text.splitlines()
        wanted = 'edgewise_tokens_total{model="edgewise",source="edge"} '
        return sum(float(line.removeprefix(wanted)) for line in lines if line.startswith(wanted))

    before = counted()
    assert httpx2.post(f"{url}/v1/completions", json=ask, trust_env=False).is_success
    assert counted() == before + 3


def test_documentation_needs_no_other_host(url: str) -> None:
    page = get(f"{url}/docs")
    assert page.is_success
    assert "http://" not in page.text
    assert "https://" not in page.text
    for path in ("/docs-assets/swagger-ui-bundle.js", "/docs-assets/swagger-ui.css"):
        assert path in page.text
        assert get(url + path).is_success


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


def test_without_a_cloud_there_is_none_to_ask_for() -> None:
    with serving("--threads", "1", "--cloud", "none") as alone:
        ids = [model["id"] for model in get(f"{alone}/v1/models").json()["data"]]
        assert "edgewise:cloud" not in ids
        ask = {"model": "edgewise:cloud", "prompt": "The word"}
        refused = httpx2.post(f"{alone}/v1/completions", json=ask, trust_env=False)
        assert refused.status_code == 404
        assert refused.json()["error"]["code"] == "model_not_found"


def test_a_port_that_is_taken_is_told_in_a_sentence(url: str) -> None:
    port = url.rpartition(":")[2]
    command = [sys.executable, "-m", "edgewise", "serve", "--port", port]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"127.0.0.1:{port}" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--temperature", "-1"), "temperature must be"),
        (("--cloud-share", "2"), "cloud-share"),
        (("--slots", "0"), "--slots"),
        (("--edge", "missing.gguf"), "missing.gguf"),
    ],
)
def test_flags_that_are_wrong_are_refused_at_the_start(
    arguments: tuple[str, ...], told: str
) -> None:
    with pytest.raises(RuntimeError, match=told), serving(*arguments):
        pass
