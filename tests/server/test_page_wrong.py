"""A server or a storage that says something else: the page says so and goes on."""

import json
from typing import Any

from playwright.sync_api import Page, expect

from tests.server.page_asking import (
    END,
    ask,
    hold,
    reply,
    say,
    sent_bodies,
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


BROKEN: list[tuple[list[Any], str]] = [
    ([{"error": {}}], "does not say why"),
    ([token(0, "Tin is")], "broke off"),
    ([token(0, "Tin is"), {"error": {"message": "The engine fell over."}}], "fell over"),
    ([token(0, "Tin is"), "{"], "something else than an answer"),
]


def test_a_chunk_that_is_none_ends_the_answer_with_a_sentence(page: Page) -> None:
    for chunk in GARBLED:
        reply(page, [token(0, "Tin is"), chunk, END])
        ask(page, "tin")
        answer = page.locator(".turn").last
        expect(answer.get_by_role("alert")).to_contain_text("something else than an answer")
        expect(answer.locator(".text")).to_have_text("Tin is")
    for chunks, said in BROKEN:
        reply(page, chunks)
        ask(page, "tin")
        expect(page.get_by_role("alert").last).to_contain_text(said)


def test_what_is_no_edgewise_is_drawn_without(page: Page) -> None:
    """Another program at the port by now, or a proxy's own page."""
    for path in ("health", "v1/sent", "examples.json"):
        page.route(f"**/{path}", lambda route: route.fulfill(json={"status": "ok"}))
    page.reload()
    expect(page.locator("#trouble")).to_contain_text("does not answer")
    expect(page.locator("#first")).to_be_visible()
    reply(page, [token(0, "Tin"), END, usage()])
    ask(page, "tin")
    expect(page.locator(".text")).to_have_text("Tin")


KEPT = {"mode": "pair", "model": "edgewise", "phase": "done", "local": False}
SAID = {"tail": "", "problem": "", "usage": None, "timing": None, "finish": "stop"}


def kept(**answer: Any) -> str:
    answers = {"pair": {**KEPT, **SAID, "tokens": [], **answer}}
    turn = {"prompt": "tin", "local": False, "answers": answers}
    return json.dumps({"local": False, "turns": [turn]})


def test_a_conversation_that_cannot_be_read_is_a_new_one(page: Page) -> None:
    for found in ("tin", "[]", '{"turns": 3}', kept(tokens=3), kept(tokens=[{}]), kept(usage={})):
        page.evaluate("found => localStorage.setItem('edgewise.conversation', found)", found)
        page.reload()
        expect(page.get_by_text("cannot be read")).to_be_visible()
    page.evaluate("found => localStorage.setItem('edgewise.conversation', found)", kept(tail="Tin"))
    page.evaluate("localStorage.setItem('edgewise.settings', '{\"mode\": \"all\"}')")
    page.reload()
    expect(page.locator(".text")).to_have_text("Tin")
    expect(page.get_by_role("radio", name="Pair")).to_be_checked()
    reply(page, [token(0, "Zinc"), END, usage()])
    ask(page, "zinc")
    expect(page.locator(".text").last).to_have_text("Zinc")


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


def test_a_page_that_is_hidden_has_kept_all(page: Page) -> None:
    """A phone may end it there, and the next second never comes."""
    hold(page)
    page.get_by_label("Message").fill("tin")
    kept = page.evaluate(
        """() => {
            document.getElementById("send").click();
            document.dispatchEvent(new Event("visibilitychange"));
            return sessionStorage.getItem("edgewise.conversation");
        }"""
    )
    assert '"prompt":"tin"' in kept
    # What breaks off because the page is left was not broken off by the server.
    until(page, "replies.length")
    say(page, token(0, "Tin"))
    expect(page.locator(".text")).to_have_text("Tin")
    page.evaluate(
        """async () => {
            dispatchEvent(new Event("pagehide"));
            replies[0].into.error(new TypeError("network error"));
            await new Promise((told) => setTimeout(told, 50));
            document.dispatchEvent(new Event("visibilitychange"));
        }"""
    )
    assert '"phase":"writing"' in page.evaluate("sessionStorage['edgewise.conversation']")


def test_a_question_goes_to_the_chosen_model_before_the_server_told_of_any(page: Page) -> None:
    page.route("**/health", lambda route: None)
    page.evaluate("localStorage.setItem('edgewise.settings', '{\"model\": \"good\"}')")
    page.evaluate("sessionStorage.clear()")
    page.reload()
    bodies = sent_bodies(page)
    reply(page, [token(0, "Tin"), END, usage()])
    ask(page, "tin")
    assert '"model":"good"' in bodies[-1]
