"""The page's first screen: recordings that play without a model, sizes, colours, axe."""

import os
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.server.page_asking import END, QUESTION, ask, done, play, reply, token

axe = pytest.importorskip("axe_playwright_python.sync_playwright")

TRACES = Path(__file__).parents[2] / "src" / "edgewise" / "server" / "page" / "traces"
LISTED = msgspec.json.decode((TRACES / "index.json").read_bytes())
LONG = "# Tin\n\n```\n" + "metal " * 60 + "\n```\n\n" + "| tin " * 40 + "|\n" + "|---" * 40 + "|\n"
SIZES = {"wide": (1280, 740), "phone": (360, 740)}


def test_the_first_screen_says_what_this_is(page: Page) -> None:
    expect(page.locator(".point")).to_have_count(1)
    legend = page.get_by_label("Legend")
    expect(legend.locator("li")).to_have_count(3)
    expect(legend.locator(".confirmed, .changed")).to_have_count(2)
    expect(page.get_by_role("button", name="Play:")).to_have_count(4)
    expect(page.get_by_label("Message")).to_be_focused()
    # A cloud at a URL is not known to be the bundled one.
    expect(page.get_by_role("button", name="Ask for real")).to_have_count(0)


@pytest.mark.parametrize("listed", LISTED, ids=lambda one: one["name"])
def test_a_recording_plays_without_a_model(page: Page, listed: dict[str, str]) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    play(page, listed["title"])
    expect(page.locator(".question")).to_contain_text(listed["prompt"])
    expect(page.get_by_text("A recording of the bundled pair")).to_be_visible()
    recorded = msgspec.json.decode((TRACES / f"{listed['name']}.json").read_bytes())
    chunks = [chunk for _, chunk in recorded["answers"]["edgewise@0.05"]]
    told = [chunk["edgewise"]["token"] for chunk in chunks if "token" in chunk.get("edgewise", {})]
    drawn = page.locator(".text .token")
    expect(drawn).to_have_count(len(told))
    cloud = [one["index"] for one in told if one["source"] == "cloud"]
    shown = page.locator(".text .cloud").evaluate_all(
        "nodes => nodes.map((node) => Number(node.dataset.number))"
    )
    assert shown == cloud
    assert not any("completions" in url for url in asked)


def test_a_recording_is_no_part_of_what_is_asked_next(page: Page) -> None:
    bodies: list[str] = []
    page.on("request", lambda request: bodies.append(request.post_data or ""))
    recorded = msgspec.json.decode((TRACES / f"{LISTED[0]['name']}.json").read_bytes())
    # One that is not over before it is stopped.
    recorded["answers"]["edgewise@0.05"][-1][0] = 1e6
    page.route("**/traces/*.json", lambda route: route.fulfill(json=recorded))
    page.get_by_role("button", name="Play:").first.click()
    expect(page.locator(".text .token")).not_to_have_count(0)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    ask(page, "Tell me about tin.")
    body = next(body for body in bodies if body)
    assert len(msgspec.json.decode(body)["messages"]) == 1


def test_the_pair_that_runs_here_is_asked_for_real(browser: Browser, url: str) -> None:
    page = browser.new_page()
    page.goto(url)
    page.get_by_label("side by side").check()
    page.get_by_role("button", name="Ask for real").first.click()
    expect(page.locator(".answer")).to_have_count(3)
    done(page)
    expect(page.get_by_text("A recording of")).to_have_count(0)
    page.get_by_role("button", name="New chat").click()
    # A recording has all three as well.
    page.get_by_role("button", name="Play:").first.click()
    expect(page.get_by_text("A recording of")).to_have_count(3)
    done(page)
    page.get_by_role("button", name="Ask for real").click()
    expect(page.get_by_text("A recording of")).to_have_count(0)
    done(page)
    page.close()


def shows(page: Page, what: str) -> None:
    """Bring the page to a state in which much is to be seen."""
    if what == "side by side":
        page.get_by_label("side by side").check()
    if what == "formatted":
        reply(page, [token(0, LONG), END])
    if what != "first":
        page.get_by_label("Cloud share").fill("27")
        ask(page, QUESTION)
    if what == "formatted":
        page.get_by_role("button", name="Formatted").click()
        expect(page.locator(".formatted table")).to_be_visible()
    if what == "panels":
        page.get_by_role("button", name="Settings").click()
        page.locator("#sent summary").click()
        page.locator(".text .cloud").first.click()
        expect(page.locator("#details.pinned")).to_be_visible()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("what", ["first", "side by side", "formatted", "panels"])
def test_everything_fits_and_axe_finds_nothing(
    page: Page, what: str, size: str, tmp_path: Path
) -> None:
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    shows(page, what)
    kept = Path(os.environ.get("SCREENSHOTS", tmp_path))
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        expect(page.get_by_label("Message")).to_be_in_viewport()
        page.screenshot(path=kept / f"page-{what.replace(' ', '-')}-{size}-{scheme}.png")
        if (size, scheme) == ("phone", "light"):
            continue  # its colours are those of the wide one
        found = axe.Axe().run(page)
        assert found.generate_report() == "Found 0 accessibility violations:\n"
