"""The page in a real Chromium, against a real server, engine and link."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, Route, expect, sync_playwright

from edgewise.addresses import bundled
from edgewise.evaluation.tasks.pocketqa import pocketqa
from edgewise.testing.link import Link, Quality
from tests.llama_server_process import llama_server
from tests.server.serving import serving

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
REQUIRED = os.environ.get("TEST_BROWSER") == "required"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not REQUIRED, reason="needs Debian's chromium; .ci/run installs it"
)

QUESTION = pocketqa().questions[1].prompt
INJECTED = "<img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "chromium is required here and missing"
    with sync_playwright() as playwright:
        # Containers give a browser neither a sandbox nor much shared memory.
        arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="module")
def linked() -> Iterator[tuple[str, Link]]:
    """A server whose cloud stands behind a link of 40 ms."""
    with llama_server(bundled("cloud")) as engine:
        link = Link("127.0.0.1", int(engine.rpartition(":")[2]), Quality(round_trip=0.04))
        arguments = ("--cloud", link.url, "--router", "bundled", "--slots", "3", "--deadline", "10")
        with serving(*arguments) as url:
            yield url, link
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

    opened = browser.new_page()
    opened.on("console", note)
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.goto(linked[0])
    expect(opened.locator("#status")).to_contain_text("with")
    yield opened
    opened.close()
    assert problems == []


def ask(page: Page, text: str) -> None:
    answers = page.locator(".answer")
    before = answers.count()
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")
    expect(answers).not_to_have_count(before)
    expect(page.get_by_role("button", name="Send")).to_be_visible(timeout=20_000)


def test_an_answer_shows_who_wrote_what(page: Page) -> None:
    ask(page, QUESTION)
    cloud = page.locator(".token.cloud").first
    edge = page.locator(".token:not(.cloud)").first
    colours = [one.evaluate("node => getComputedStyle(node).color") for one in (cloud, edge)]
    assert colours[0] != colours[1]
    assert page.locator(".token.pending").count() == 0
    for counter in ("share", "calls", "rate", "first"):
        expect(page.locator(f"[data-counter={counter}]")).to_have_text(re.compile(r"\d"))
    bars = page.locator(".timeline span")
    assert bars.count() > 3
    line, last = page.locator(".timeline").bounding_box(), bars.last.bounding_box()
    assert line
    assert last
    assert last["x"] + last["width"] == pytest.approx(line["x"] + line["width"], abs=3)
    assert page.locator(".timeline span.cloud").count() == page.locator(".token.cloud").count()
    assert "by the cloud" in (page.locator(".timeline").get_attribute("aria-label") or "")

    cloud.hover()
    details = page.locator("#details")
    expect(details).to_contain_text("by the cloud")
    expect(details).to_contain_text("score")
    expect(details.locator("tr")).not_to_have_count(1)


def test_tokens_are_reached_by_keyboard(page: Page) -> None:
    ask(page, QUESTION)
    page.locator(".answer .text").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".token.chosen")).to_have_count(1)
    expect(page.locator("#details")).to_contain_text("by the")


def test_the_slider_moves_the_share(page: Page) -> None:
    page.get_by_label("Cloud share").focus()
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#share-value")).to_have_text("0%")
    ask(page, QUESTION)
    expect(page.locator(".token.cloud")).to_have_count(0)
    page.get_by_label("Cloud share").fill("30")
    ask(page, QUESTION)
    assert page.locator(".token.cloud").count() > 0


def test_modes_and_side_by_side(page: Page) -> None:
    page.get_by_label("cloud only").check()
    ask(page, QUESTION)
    assert page.locator(".token.cloud").count() == page.locator(".timeline span").count()
    page.get_by_label("side by side").check()
    ask(page, QUESTION)
    expect(page.locator(".column")).to_have_count(3)
    page.get_by_label("edge only").check()
    expect(page.locator(".column")).to_have_count(1)
    expect(page.locator(".token.cloud")).to_have_count(0)


def test_a_second_question_goes_with_the_first(page: Page) -> None:
    bodies: list[str] = []
    page.on("request", lambda request: bodies.append(request.post_data or ""))
    ask(page, QUESTION)
    ask(page, "Tell me about copper.")
    last = [body for body in bodies if body][-1]
    assert QUESTION[:20] in last
    assert '"role":"assistant"' in last
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".answer")).to_have_count(0)


def test_the_drawer_says_what_left(page: Page, linked: tuple[str, Link]) -> None:
    drawer = page.locator("#sent")
    ask(page, QUESTION)
    expect(page.locator("#sent-sum")).to_have_text(re.compile(r"[1-9][\d,]* bytes, [\d,]+ char"))
    drawer.locator("summary").click()
    rows = drawer.locator("tbody tr")
    expect(rows.first).to_contain_text(linked[1].url.removeprefix("http://"))
    shown = rows.count()
    page.get_by_label("edge only").check()
    ask(page, QUESTION)
    expect(rows).to_have_count(shown)


def test_a_local_conversation_stays_local_until_a_new_one(page: Page) -> None:
    bodies: list[str] = []
    page.on("request", lambda request: bodies.append(request.post_data or ""))
    switch = page.get_by_label("local")
    page.get_by_label("Cloud share").fill("30")
    switch.check()
    ask(page, "Tell me about tin.")
    expect(page.locator(".token.cloud")).to_have_count(0)
    expect(page.locator(".question.local")).to_have_count(1)
    expect(switch).to_be_disabled()
    ask(page, QUESTION)
    expect(page.locator(".token.cloud")).to_have_count(0)
    asked = [body for body in bodies if body]
    assert asked[-1].count('"edgewise":{"cloud":"none"}') == 3
    page.get_by_role("button", name="New chat").click()
    expect(switch).to_be_enabled()
    expect(switch).not_to_be_checked()
    ask(page, QUESTION)
    expect(page.locator(".token.cloud")).not_to_have_count(0)


def test_markup_stays_text(page: Page) -> None:
    ask(page, INJECTED)
    expect(page.locator(".question")).to_have_text(INJECTED)

    def inject(route: Route) -> None:
        about = '"source":"edge","reason":"critical","score":null,"seconds":0.1,"wait":0'
        text = INJECTED.replace('"', '\\"')
        token = f'{{"index":0,"id":1,"text":"{text}",{about},"edge":[],"cloud":[]}}'
        chunk = f'{{"choices":[{{"delta":{{"content":"{text}"}}}}],"edgewise":{{"token":{token}}}}}'
        body = f"data: {chunk}\n\ndata: [DONE]\n\n"
        route.fulfill(body=body, content_type="text/event-stream")

    # No model of ours writes this by itself.
    page.route("**/v1/chat/completions", inject)
    ask(page, "hello")
    expect(page.locator(".text").last).to_have_text(INJECTED)
    page.locator(".token").last.hover()
    expect(page.locator("#details")).to_contain_text(INJECTED)
    assert page.locator("#columns img, #details img").count() == 0
    assert page.title() == "Edgewise"


def test_a_server_that_refuses_is_told(page: Page, problems: list[str]) -> None:
    ask(page, "copper " * 5000)
    expect(page.get_by_role("alert")).to_contain_text("context")
    # Chromium's own word on a 400.
    assert "Failed to load resource" in problems.pop()


@pytest.mark.parametrize("width", [1280, 360])
def test_everything_fits(page: Page, width: int, tmp_path: Path) -> None:
    page.set_viewport_size({"width": width, "height": 740})
    for mode in ("pair", "side by side"):
        page.get_by_label(mode).check()
        ask(page, QUESTION)
        across = page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert across <= 0
        expect(page.get_by_label("Message")).to_be_in_viewport()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        kept = Path(os.environ.get("SCREENSHOTS", tmp_path))
        page.screenshot(path=kept / f"page-{width}-{scheme}.png")


def test_a_cloud_that_is_cut_off_is_named(page: Page, linked: tuple[str, Link]) -> None:
    _, link = linked
    link.refuse()
    try:
        page.get_by_label("Cloud share").fill("30")
        ask(page, QUESTION)
        expect(page.locator(".problem")).to_contain_text("cannot be reached (unavailable)")
        fallen = page.locator(".token.fallback")
        expect(fallen).not_to_have_count(0)
        fallen.first.hover()
        expect(page.locator("#details")).to_contain_text("unavailable")
        expect(page.locator(".token.cloud")).to_have_count(0)
    finally:
        link.restore()


def test_what_an_answer_cost(browser: Browser, page: Page) -> None:
    """Shown where the server was told a price, and nowhere else."""
    ask(page, QUESTION)
    expect(page.locator("[data-counter=calls]")).to_have_text(re.compile(r"\d"))
    expect(page.locator("[data-counter=paid]")).to_be_hidden()
    with serving("--price", "2000,2000,2000", "--router", "constant:1") as url:
        priced = browser.new_page()
        priced.goto(url)
        expect(priced.locator("#status")).to_contain_text("with")
        ask(priced, QUESTION)
        for counter in ("paid", "saved"):
            expect(priced.locator(f"[data-counter={counter}]")).to_have_text(re.compile(r"0\.\d"))
        tokens = priced.locator(".token")
        reasons = tokens.evaluate_all("nodes => nodes.map((node) => node.about.reason)")
        assert reasons[0] == "critical"
        tokens.nth(reasons.index("cost")).hover()
        expect(priced.locator("#details")).to_contain_text("dearer than the cloud alone")
        priced.close()
