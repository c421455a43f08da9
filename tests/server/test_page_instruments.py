"""The page's instruments in a real Chromium: each is used, on a real server or scripted models."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.doubles.around import HeldCloud
from tests.server.at_port import at_port
from tests.server.in_process import TEXT, answering_of
from tests.server.page_asking import (
    END,
    another_turn,
    ask,
    done,
    hold,
    play,
    reply,
    say,
    token,
    usage,
)

SAID = "sky:"


def opened(browser: Browser, url: str, problems: list[str]) -> Iterator[Page]:
    def note(message: ConsoleMessage) -> None:
        if message.type == "error":
            problems.append(message.text)

    page = browser.new_page()
    page.on("console", note)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(url)
    expect(page.locator("#status")).to_contain_text("with")
    yield page
    page.close()
    assert problems == []


@pytest.fixture
def here(browser: Browser, url: str, problems: list[str]) -> Iterator[Page]:
    """The page of the bundled pair, both models in the server's process."""
    yield from opened(browser, url, problems)


def test_where_nothing_was_routed_it_says_why(here: Page) -> None:
    slider = here.get_by_label("Cloud share")
    slider.fill("0")
    ask(here, "Tell me about tin.")
    expect(here.locator(".why")).to_have_text("Nothing was asked of the cloud: the share is 0.")
    here.get_by_role("button", name="New chat").click()
    slider.fill("5")
    here.get_by_label("local", exact=True).check()
    ask(here, "Tell me in private about tin.")
    expect(here.locator(".why")).to_contain_text("the conversation is local")
    here.get_by_role("button", name="New chat").click()
    play(here, "Nothing to ask the cloud for")
    expect(here.locator(".why")).to_contain_text("the router was never above its threshold")


def test_the_timeline_of_a_long_answer_holds_all_of_it(here: Page) -> None:
    """On a phone too; the cloud's last token was cut off with the bars that found no place."""
    here.set_viewport_size({"width": 360, "height": 740})
    chunks = [token(place, "so ") for place in range(500)]
    chunks[10::20] = [token(10 + 20 * n, "so ", source="cloud") for n in range(25)]
    reply(here, [*chunks, token(500, "on", source="cloud"), END])
    ask(here, "tin")
    line = here.locator(".timeline")
    expect(line).to_have_attribute("aria-label", "Timeline of 501 tokens, 26 by the cloud")
    bars = line.locator("span.cloud")
    expect(bars).to_have_count(26)
    last, whole = bars.last.bounding_box(), line.bounding_box()
    assert last
    assert whole
    assert last["x"] + last["width"] <= whole["x"] + whole["width"] + 1
    first = bars.first.bounding_box()
    assert first
    assert first["x"] - whole["x"] == pytest.approx(whole["width"] * 10 / 501, abs=2)


def test_what_an_answer_shows_is_of_the_model_that_was_asked(here: Page, url: str) -> None:
    """Another one may be chosen since, even while it is written."""
    pair = here.request.get(f"{url}/health").json()["models"][0]
    models = [pair, {**pair, "model": "alone", "cloud": None, "bundled": False}]
    here.route("**/health", lambda route: route.fulfill(json={"models": models}))
    here.reload()
    hold(here)
    with another_turn(here):
        here.get_by_label("Message").fill("tin")
        here.keyboard.press("Enter")
    told = token(0, "Tin", reason="below_threshold", score=0.2, threshold=0.9)
    say(here, {"edgewise": {"prompt_token_ids": [1, 2]}}, told)
    here.get_by_label("Model").select_option("alone")
    expect(here.get_by_label("cloud only")).to_be_disabled()
    expect(here.get_by_role("button", name="Unplug the cloud")).to_be_visible()
    say(here, END, usage(), over=True)
    done(here)
    expect(here.locator(".why")).to_contain_text("the router was never above its threshold")


def test_a_running_answer_is_unplugged(browser: Browser, problems: list[str]) -> None:
    """It waits for a cloud that says nothing; from there on the edge writes it."""
    cloud = HeldCloud()
    edge = ScriptedEdge(replying(TEXT, prompt=SAID))
    with at_port(answering_of(edge, cloud, deadline=5.0)) as url:
        for page in opened(browser, url, problems):
            page.get_by_label("Cloud share").fill("15")
            page.get_by_label("Message").fill(SAID)
            page.keyboard.press("Enter")
            page.get_by_role("button", name="Unplug the cloud").click()
            done(page)
            expect(page.locator(".answer .text")).to_contain_text(TEXT)
            expect(page.locator(".plug")).to_contain_text("0 tokens")
            expect(page.locator(".plug")).to_contain_text(re.compile(r"the edge wrote .*\d+"))
            expect(page.locator(".answer .token.cloud")).to_have_count(0)
