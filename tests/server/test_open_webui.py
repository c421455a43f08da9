"""Open WebUI before `serve`, as Compose sets both up, and somebody who asks in a browser."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from tests.gateway.processes import lasting_port, until
from tests.test_deploy_serve import PAGE, Place, environment, served

__all__ = ["served"]

OPEN_WEBUI = os.environ.get("OPEN_WEBUI", "")
PIPE = Path(__file__).parents[2] / "integrations/open-webui/edgewise_pipe.py"
QUESTION = "Question: What are wine, horse and spaghetti? Come to the point. Answer and Reasoning:"
OWNER = {"name": "Owner", "email": "owner@example.org", "password": "Of-my-own-1"}


@contextmanager
def open_webui(folder: Path, server: str, log: Path) -> Iterator[str]:
    """Its URL. It has the container's environment, and a folder for the container's volume."""
    port = lasting_port()
    url = f"http://127.0.0.1:{port}"
    here = environment(PAGE, Place(folder, {"http://serve:8300": server}))
    with log.open("wb") as out:
        process = subprocess.Popen(
            [OPEN_WEBUI, "serve", "--host", "127.0.0.1", "--port", str(port)],
            env=here | {"DATA_DIR": str(folder / "data")},
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
        )

    def well() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            return httpx2.get(f"{url}/health", timeout=2, trust_env=False).is_success
        except httpx2.TransportError:
            return False

    try:
        until(well, "Open WebUI")
        yield url
    finally:
        process.kill()
        process.wait()


@pytest.mark.skipif(not OPEN_WEBUI, reason="needs OPEN_WEBUI, its command; see make test-webui")
def test_a_question_is_answered(
    served: tuple[str, str, Path], browser: Browser, tmp_path: Path
) -> None:
    server, key, told = served
    (tmp_path / "tmp").mkdir()
    (tmp_path / "webui.env").write_text(f"OPENAI_API_KEY={key}\nWEBUI_SECRET_KEY=long\n")
    log = tmp_path / "webui.log"
    with open_webui(tmp_path, server, log) as url:
        signed = httpx2.post(f"{url}/api/v1/auths/signup", json=OWNER, timeout=60)
        page = browser.new_page()
        page.add_init_script(f"localStorage.setItem('token', {signed.json()['token']!r})")
        page.goto(url)
        page.get_by_role("button", name="Okay, Let's Go!").click()
        page.locator("#chat-input").fill("Tell me about copper.")
        page.get_by_role("button", name="Send message").click()
        answer = page.locator("#response-content-container")
        expect(answer).to_contain_text("stands for copper.")
        page.close()
    # Nothing else was asked of the model, and nothing was refused.
    assert "request failed" not in log.read_text()
    lines = [line for line in told.read_text().splitlines() if "prompts first" not in line]
    assert len(lines) == 1, lines


@pytest.mark.deep
@pytest.mark.skipif(not OPEN_WEBUI, reason="needs OPEN_WEBUI, its command; see make test-webui")
def test_the_pipe_shows_whose_words_they_are(served: tuple[str, str, Path], tmp_path: Path) -> None:
    server, key, _ = served
    (tmp_path / "tmp").mkdir()
    (tmp_path / "webui.env").write_text(f"OPENAI_API_KEY={key}\nWEBUI_SECRET_KEY=long\n")
    with (
        open_webui(tmp_path, server, tmp_path / "webui.log") as url,
        httpx2.Client(base_url=url, timeout=60, trust_env=False) as client,
    ):
        signed = client.post("/api/v1/auths/signup", json=OWNER).json()
        client.headers["Authorization"] = f"Bearer {signed['token']}"

        def post(path: str, body: object = None) -> httpx2.Response:
            reply = client.post(f"/api/v1/functions{path}", json=body)
            assert reply.is_success, reply.text
            return reply

        pasted = {"id": "edgewise_pipe", "name": "Edgewise", "content": PIPE.read_text()}
        post("/create", {**pasted, "meta": {"description": "tokens"}})
        post("/id/edgewise_pipe/toggle")
        valves = {"url": server, "key": key, "model": "edgewise@1"}
        post("/id/edgewise_pipe/valves/update", valves)
        asked = [{"role": "user", "content": QUESTION}]
        body = {"model": "edgewise_pipe", "messages": asked, "stream": False}
        answer = client.post("/api/chat/completions", json=body).json()
    assert "**" in answer["choices"][0]["message"]["content"]
    assert "pasta" in answer["choices"][0]["message"]["content"]
