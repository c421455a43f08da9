"""The page's looks: states, sizes, colours, axe."""

import os
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from edgewise.testing.link import Link
from tests.server.page_asking import (
    END,
    QUESTION,
    another_turn,
    ask,
    ask_example,
    choose,
    hold,
    reply,
    say,
    token,
)

axe = pytest.importorskip("axe_playwright_python.sync_playwright")

LONG = "# Tin\n\n```\n" + "metal " * 60 + "\n```\n\n" + "| tin " * 40 + "|\n" + "|---" * 40 + "|\n"
SIZES = {"wide": (1280, 760), "phone": (390, 800)}


def test_the_first_screen_says_what_this_is(page: Page) -> None:
    expect(page.locator("#first h2")).to_be_visible()
    expect(page.get_by_label("Legend").locator("li")).to_have_count(7)
    expect(page.get_by_label("Message")).to_be_focused()
    expect(page.locator("#models")).to_contain_text("(0.4 M) + ")


def answered(body: object, route: Route) -> None:
    route.fulfill(json=body)


@pytest.mark.parametrize("size", SIZES)
def test_the_header_never_wraps(page: Page, linked: tuple[str, Link], size: str) -> None:
    page.set_viewport_size({"width": SIZES[size][0], "height": SIZES[size][1]})
    pair = page.request.get(f"{linked[0]}/health").json()["models"][0]
    header = page.locator("header")
    heights: list[float] = []
    for name in ("tin", "a-model-of-many-words-" * 20):
        model = {**pair, "edge": name}
        page.route("**/health", partial(answered, {"models": [model]}))
        page.reload()
        expect(page.locator("#models")).to_contain_text(name[:5])
        box = header.bounding_box()
        assert box
        heights.append(box["height"])
    assert heights[0] == heights[1]


def shows(page: Page, what: str) -> None:
    """Bring the page to a state in which much is to be seen."""
    if what == "side by side":
        choose(page, "Side by side")
    if what == "formatted":
        reply(page, [token(0, LONG), END])
        ask(page, QUESTION)
        expect(page.locator(".text table")).to_be_visible()
    if what in ("side by side", "panels"):
        ask_example(page)
    if what == "local":
        page.get_by_role("button", name="Local").click()
        ask_example(page, "An analogy")
    if what == "writing":
        hold(page)
        with another_turn(page):
            page.get_by_label("Message").fill("tin")
            page.keyboard.press("Enter")
        say(page, {"edgewise": {"prompt_token_ids": [1]}}, token(0, "Tin"))
        expect(page.get_by_role("button", name="Unplug")).to_be_enabled()
    if what == "panels":
        page.locator(".meters summary").click()
        page.locator("#sent summary").click()
        page.locator(".text .changed").click()
        expect(page.locator("#details.pinned")).to_be_visible()
    if what == "settings":
        page.get_by_role("button", name="Settings").click()
        expect(page.get_by_label("Temperature")).to_be_visible()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "what", ["first", "side by side", "formatted", "local", "writing", "panels", "settings"]
)
def test_everything_fits_and_axe_finds_nothing(
    here: Page, what: str, size: str, tmp_path: Path
) -> None:
    width, height = SIZES[size]
    here.set_viewport_size({"width": width, "height": height})
    shows(here, what)
    kept = Path(os.environ.get("SCREENSHOTS", tmp_path))
    for scheme in ("light", "dark"):
        here.emulate_media(color_scheme=scheme)
        assert here.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        expect(here.get_by_label("Message")).to_be_in_viewport()
        here.screenshot(path=kept / f"page-{what.replace(' ', '-')}-{size}-{scheme}.png")
        if (size, scheme) == ("phone", "light"):
            continue  # its colours are those of the wide one
        found = axe.Axe().run(here)
        assert found.generate_report() == "Found 0 accessibility violations:\n"
