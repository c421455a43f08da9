"""Servers for the tests that only ask them, and a browser with the page open."""

import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    expect,
    sync_playwright,
)

from edgewise.cloud.engine import LlamaServer
from edgewise.testing.link import Link
from tests.doubles.scripted_engine import ScriptedEngine
from tests.models import write_with_tools
from tests.server.page_asking import PATIENCE
from tests.server.serving import far_cloud, serving
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
        # Containers give a browser neither a sandbox nor much shared memory. To compile an engine
        # a second time, for speed, takes longer than all that a page is asked here.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--js-flags=--liftoff-only"]
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="session")
def linked() -> Iterator[tuple[str, Link]]:
    """A server whose cloud stands behind a link of 40 ms."""
    flags = ("--router", "bundled", "--slots", "3", "--deadline", "60")
    with far_cloud(0.04) as link, serving("--cloud", link.url, *flags) as found:
        yield found, link


@pytest.fixture
def problems() -> list[str]:
    """Errors in the page's console; a test that expects one takes it out."""
    return []


@pytest.fixture(scope="module")
def shared(browser: Browser) -> Iterator[BrowserContext]:
    """A page that stays open keeps the process of those that come and go."""
    with browser.new_context() as made:
        made.new_page()
        yield made


@contextmanager
def opened(context: BrowserContext, url: str, problems: list[str]) -> Generator[Page]:
    """The page, of which nothing is kept; no test may leave an error in its console."""

    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    page = context.new_page()
    everything = {"origin": url, "storageTypes": "all"}
    context.new_cdp_session(page).send("Storage.clearDataForOrigin", everything)
    page.on("console", note)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(url)
    expect(page.locator("#models")).to_contain_text("+")
    yield page
    page.close()
    assert problems == []


@pytest.fixture
def page(shared: BrowserContext, linked: tuple[str, Link], problems: list[str]) -> Iterator[Page]:
    """The page of a pair whose cloud is behind a link."""
    with opened(shared, linked[0], problems) as found:
        yield found


@pytest.fixture
def here(shared: BrowserContext, url: str, problems: list[str]) -> Iterator[Page]:
    """The page of the bundled pair, both models in the server's process."""
    with opened(shared, url, problems) as found:
        yield found


@pytest.fixture
def cloud(engine: ScriptedEngine) -> Iterator[LlamaServer]:
    """The cloud model behind it."""
    found = LlamaServer(engine.url)
    yield found
    found.close()
