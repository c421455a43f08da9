"""Servers for the tests that only ask them, and a browser with the page open."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from edgewise.addresses import bundled
from edgewise.testing.link import Link, Quality
from tests.llama_server_process import llama_server
from tests.models import write_with_tools
from tests.server.page_asking import PATIENCE
from tests.server.serving import serving
from tests.tool_models import HERMES


@pytest.fixture(scope="session")
def tool_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An edge model whose template has tools, and whose weights are random."""
    path = write_with_tools(tmp_path_factory.mktemp("tools") / "tools.gguf", HERMES)
    with serving("--edge", str(path), "--cloud", "none", "--threads", "1") as found:
        yield found


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
expect.set_options(timeout=PATIENCE)
REQUIRED = os.environ.get("TEST_BROWSER") == "required"


@pytest.fixture(scope="session")
def url() -> Iterator[str]:
    """The bundled pair, two answers at a time."""
    with serving("--slots", "2", "--threads", "1", "--deadline", "30") as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """While it runs, so does an event loop: `asyncio.run` fails in this process until it ends."""
    if CHROMIUM is None and not REQUIRED:
        pytest.skip("needs Debian's chromium; .ci/run installs it")
    assert CHROMIUM is not None, "chromium is required here and missing"
    with sync_playwright() as playwright:
        # Containers give a browser neither a sandbox nor much shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="session")
def linked() -> Iterator[tuple[str, Link]]:
    """A server whose cloud stands behind a link of 40 ms."""
    with llama_server(bundled("cloud")) as engine:
        link = Link("127.0.0.1", int(engine.rpartition(":")[2]), Quality(round_trip=0.04))
        arguments = ("--cloud", link.url, "--router", "bundled", "--slots", "3", "--deadline", "10")
        with serving(*arguments) as found:
            yield found, link
        link.close()


@pytest.fixture
def problems() -> list[str]:
    """Errors in the page's console; a test that expects one takes it out."""
    return []


@pytest.fixture
def page(browser: Browser, linked: tuple[str, Link], problems: list[str]) -> Iterator[Page]:
    """The page, opened; no test may leave an error in its console."""

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    context = browser.new_context()
    opened = context.new_page()
    opened.on("console", note)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.goto(linked[0])
    expect(opened.locator("#status")).to_contain_text("with")
    yield opened
    context.close()
    assert problems == []
