"""A server or a storage that says something else: the page says so and goes on."""

import json
from typing import Any

from playwright.sync_api import Page, expect

from tests.server.page_asking import (
    END,
    another_turn,
    ask,
    done,
    hold,
    reply,
    say,
    token,
    until,
    usage,
)

GARBLED: list[Any] = [
    "null",
    "3",
    {"choices": 3},
    {"choices": [{"delta": {"content": {}}}]},
    token(1, "so", score="high"),
    token(1, "so", edge=[{"token": 3}]),
    {"usage": {}},
    {"choices": [], "edgewise": {"pending": {"index": 1, "text": {}}}},
]


def test_a_chunk_that_is_none_ends_the_answer_with_a_sentence(page: Page) -> None:
    for chunk in GARBLED:
        reply(page, [token(0, "Tin is"), chunk, END])
        ask(page, "tin")
        answer = page.locator(".turn").last
        expect(answer.get_by_role("alert")).to_contain_text("something else than an answer")
        expect(answer.locator(".text")).to_have_text("Tin is")
    reply(page, [{"error": {}}])
    ask(page, "tin")
    expect(page.get_by_role("alert").last).to_contain_text("does not say why")


def test_nothing_goes_on_behind_an_answer_that_was_given_up(page: Page) -> None:
    hold(page)
    with another_turn(page):
        page.get_by_label("Message").fill("tin")
        page.keyboard.press("Enter")
    say(page, "{")
    done(page)
    until(page, "replies[0].cancelled")


def test_what_is_no_edgewise_is_drawn_without(page: Page) -> None:
    """Another program at the port by now, or a proxy's own page."""
    for path in ("health", "v1/sent", "traces/index.json"):
        page.route(f"**/{path}", lambda route: route.fulfill(json={"status": "ok"}))
    page.reload()
    expect(page.locator("#status")).to_contain_text("does not answer")
    expect(page.locator("#first")).to_be_visible()
    reply(page, [token(0, "Tin"), END, usage()])
    ask(page, "tin")
    expect(page.locator(".text")).to_have_text("Tin")


def test_a_recording_that_does_not_come_is_given_up(page: Page, problems: list[str]) -> None:
    page.route("**/traces/*.json", lambda route: route.fulfill(status=500, json={}))
    with another_turn(page):
        page.get_by_role("button", name="Play:").first.click()
    expect(page.get_by_role("alert")).to_contain_text("HTTP 500")
    assert "Failed to load resource" in problems.pop()
    page.unroute("**/traces/*.json")
    page.route("**/traces/*.json", lambda route: None)
    page.get_by_role("button", name="Play again").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    page.unroute("**/traces/*.json")
    with another_turn(page):
        page.get_by_role("button", name="Play again").click()
    done(page)
    expect(page.locator(".text .token")).not_to_have_count(0)


KEPT = {"mode": "pair", "model": "edgewise", "recorded": False, "phase": "done", "local": False}
SAID = {"tail": "", "problem": "", "usage": None, "timing": None, "finish": "stop"}


def kept(**answer: Any) -> str:
    answers = {"pair": {**KEPT, **SAID, "tokens": [], **answer}}
    turn = {"prompt": "tin", "local": False, "recording": None, "answers": answers}
    return json.dumps({"local": False, "turns": [turn]})


def test_a_conversation_that_cannot_be_read_is_a_new_one(page: Page) -> None:
    for found in ("tin", "[]", '{"turns": 3}', kept(tokens=3), kept(tokens=[{}]), kept(usage={})):
        page.evaluate("found => localStorage.setItem('edgewise.conversation', found)", found)
        page.reload()
        expect(page.get_by_text("cannot be read")).to_be_visible()
    reply(page, [token(0, "Tin"), END, usage()])
    ask(page, "tin")
    expect(page.locator(".text")).to_have_text("Tin")


def test_a_conversation_that_can_be_read_is_drawn(page: Page) -> None:
    page.evaluate("found => localStorage.setItem('edgewise.conversation', found)", kept(tail="Tin"))
    page.evaluate("localStorage.setItem('edgewise.settings', '{\"mode\": \"all\"}')")
    page.reload()
    expect(page.locator(".text")).to_have_text("Tin")
    expect(page.get_by_label("pair", exact=True)).to_be_checked()


def test_what_left_is_not_said_to_be_nothing_where_nobody_tells(
    page: Page, problems: list[str]
) -> None:
    refused = {"error": {"message": "With several keys the record is the operator's."}}
    page.route("**/v1/sent", lambda route: route.fulfill(status=403, json=refused))
    expect(page.locator("#sent-sum")).not_to_have_text("not known")
    reply(page, [token(0, "Tin"), END, usage()])
    ask(page, "tin")
    expect(page.locator("#sent-sum")).to_have_text("not known")
    assert "Failed to load resource" in problems.pop()
