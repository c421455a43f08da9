"""A conversation on the page: what can be done, what is kept, what goes wrong."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from edgewise.testing.link import Link
from tests.server.conftest import opened
from tests.server.page_asking import (
    COMPOSING,
    END,
    QUESTION,
    TIN,
    answered,
    ask,
    begin,
    choose,
    cloud_token,
    compose,
    done,
    hold,
    reply,
    say,
    sent_bodies,
    token,
    until,
    usage,
    whole_turn,
)
from tests.server.serving import serving


def test_an_answer_is_saved_and_copied(page: Page) -> None:
    """As a file that shows who wrote what, loads nothing and runs nothing; as text, none struck."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answered(page, [token(0, "<img src=x>"), cloud_token(1, " a", " no"), END], "tin?")
    page.get_by_role("button", name="Copy").click()
    expect(page.locator(".answer [role=status]")).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == "<img src=x> a"
    page.locator(".meters summary").click()
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Share").click()
    assert downloading.value.suggested_filename == "edgewise tin.html"
    shared = page.context.new_page()
    asked: list[str] = []
    shared.on("request", lambda request: asked.append(request.url))
    shared.set_content(Path(downloading.value.path()).read_text(encoding="utf-8"))
    expect(shared.locator(".question")).to_have_text("tin?")
    expect(shared.locator(".text .changed rt")).to_have_text("no")
    expect(shared.locator(".text")).to_contain_text("<img src=x>")
    expect(shared.locator(".caption")).to_contain_text("changed 1 of 2")
    assert shared.locator("img, script, button").count() == 0
    assert asked == []
    shared.close()


def test_a_question_is_edited_and_an_answer_written_again(page: Page) -> None:
    """What followed is dropped, and what was said before a question is no part of it."""
    bodies = sent_bodies(page)
    for prompt in (QUESTION, "Tell me about copper.", "And about gold?"):
        ask(page, prompt)
    edit = page.get_by_role("button", name="Edit").nth(1)
    edit.click()
    field = page.get_by_label("Question", exact=True)
    expect(field).to_be_focused()
    page.keyboard.press("Escape")
    expect(field).to_have_count(0)
    expect(page.locator(".turn")).to_have_count(3)
    edit.click()
    field.fill("Tell me about zinc.")
    page.keyboard.press("Enter")
    expect(page.locator(".question").last).to_have_text("Tell me about zinc.")
    done(page)
    expect(page.locator(".turn")).to_have_count(2)
    roles = [message["role"] for message in json.loads(bodies[-1])["messages"]]
    assert roles == ["user", "assistant", "user"]
    assert "copper" not in bodies[-1]
    choose(page, "Edge")
    with whole_turn(page):
        page.get_by_role("button", name="Ask again").first.click()
    expect(page.locator(".turn")).to_have_count(1)
    expect(page.locator(".text")).not_to_have_text("")
    last = json.loads(bodies[-1])
    assert last["model"] == "edgewise:edge"
    assert [message["content"] for message in last["messages"]] == [QUESTION]


def test_a_key_of_an_input_method_sends_nothing(page: Page) -> None:
    bodies = sent_bodies(page)
    answered(page)
    page.get_by_role("button", name="Edit").click()
    for name in ("Message", "Question"):
        field = page.get_by_label(name, exact=True)
        for how in COMPOSING:
            for key in ("Enter", "Escape"):
                compose(field, key, how)
    assert len(bodies) == 1
    expect(page.locator(".turn")).to_have_count(1)
    # What is edited is still there.
    expect(field).to_have_value("にほんご")
    with whole_turn(page):
        field.press("Enter")
    assert len(bodies) == 2


def test_an_answer_is_stopped(page: Page, linked: tuple[str, Link]) -> None:
    _, link = linked
    # A share that no other test has spent.
    page.get_by_label("Cloud share").fill("23")
    link.stall()
    try:
        begin(page, QUESTION)
        stop = page.get_by_role("button", name="Stop")
        expect(stop).to_be_visible()
        expect(page.get_by_role("button", name="Ask again")).to_have_count(0)
        stop.click()
        expect(page.get_by_text("Stopped.")).to_be_visible()
        done(page)
    finally:
        link.restore()
    expect(page.locator(".question")).to_have_text(re.compile(r"^A traveller .* count\.$"))
    with whole_turn(page):
        page.get_by_role("button", name="Ask again").click()
    expect(page.locator("[data-counter=share]")).to_have_text(re.compile(r"\d"))


def test_a_reload_keeps_the_conversation(page: Page) -> None:
    page.get_by_label("Cloud share").fill("28")
    ask(page, QUESTION)
    ask(page, "Tell me about copper.")
    texts = page.locator(".text").all_text_contents()
    page.reload()
    expect(page.locator(".text")).to_have_count(2)
    assert page.locator(".text").all_text_contents() == texts
    page.locator(".text .cloud").first.hover()
    expect(page.locator("#details tbody tr")).not_to_have_count(0)
    bodies = sent_bodies(page)
    ask(page, "And zinc?")
    assert QUESTION[:20] in bodies[-1]
    page.get_by_role("button", name="New chat").click()
    page.reload()
    expect(page.locator("#first")).to_be_visible()
    expect(page.locator(".turn")).to_have_count(0)


def test_settings_are_sent(page: Page) -> None:
    bodies = sent_bodies(page)
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("System prompt")).to_be_focused()
    page.get_by_label("System prompt").fill("Be brief.")
    page.get_by_label("Temperature").fill("0.5")
    page.get_by_label("Longest answer").fill("3")
    page.keyboard.press("Escape")
    expect(page.get_by_label("Temperature")).to_be_hidden()
    expect(page.get_by_role("button", name="Settings (set)")).to_be_focused()
    ask(page, "Tell me about tin.")
    expect(page.get_by_text("Cut at")).to_be_visible()
    body = json.loads(bodies[-1])
    assert (body["temperature"], body["max_completion_tokens"]) == (0.5, 3)
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert page.locator(".text .token").count() == 3
    # What the server would refuse is marked and not sent.
    page.get_by_role("button", name="Settings").click()
    expect(page.get_by_label("System prompt")).to_be_focused()
    page.get_by_label("Temperature").fill("7")
    expect(page.locator("#temperature:invalid")).to_have_count(1)
    ask(page, "Tell me about tin.")
    assert json.loads(bodies[-1])["temperature"] == 0.5


def test_a_key_is_never_kept_and_a_server_that_is_gone_is_told(browser: Browser) -> None:
    page = browser.new_page()
    with serving("--cloud", "none", EDGEWISE_API_KEY="a-secret-of-mine") as url:
        page.goto(url)
        expect(page.locator("#models")).to_contain_text("no cloud")
        # There is nothing to choose.
        expect(page.get_by_role("radio")).to_have_count(0)
        expect(page.get_by_label("Cloud share")).to_be_hidden()
        expect(page.locator("#sent-sum")).to_have_text("not known")
        begin(page, "Tell me about tin.")
        expect(page.get_by_role("alert")).to_contain_text("API key is missing")
        field = page.get_by_label("API key")
        expect(field).to_be_focused()
        field.fill("a-secret-of-mine")
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Ask again").click()
        expect(page.locator(".text .token")).not_to_have_count(0)
        done(page)
        page.reload()
        expect(page.locator(".turn")).to_have_count(1)
        kept = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie])")
        assert "Tell me about tin." in kept
        assert "a-secret-of-mine" not in kept
    begin(page, "Tell me about zinc.")
    turn = page.locator(".turn").last
    expect(turn.get_by_role("alert")).to_contain_text("does not answer")
    expect(page.locator("#trouble")).to_contain_text("start it again")
    # There is nothing to copy, and nothing to count; the question is kept.
    expect(turn.locator(".answer").locator("button, summary").filter(visible=True)).to_have_count(0)
    expect(turn.locator(".question")).to_have_text("Tell me about zinc.")
    expect(turn.get_by_role("button", name="Ask again")).to_be_visible()
    page.close()


@pytest.mark.parametrize("there", [True, False])
def test_a_long_answer_scrolls_while_the_reader_is_at_its_end(page: Page, there: bool) -> None:
    """It grows under a reader's eyes, and nobody is dragged away from what is being read."""
    hold(page)
    begin(page, "Count.")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    say(page, token(0, "one\n" * 200))
    main = page.locator("main")
    left = "node => node.scrollHeight - node.scrollTop - node.clientHeight"
    expect(page.locator(".text")).to_contain_text("one")
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "true")
    until(page, "document.querySelector('main').scrollTop > 1000")
    if not there:
        main.evaluate("node => { node.scrollTop = 300 }")
        expect(page.get_by_role("button", name="To the end")).to_be_visible()
    say(page, token(1, "two\n" * 200), END, over=True)
    done(page)
    expect(page.locator(".text")).to_contain_text("two")
    expect(page.locator(".answer")).to_have_attribute("aria-busy", "false")
    if there:
        until(page, f"({left})(document.querySelector('main')) < 2")
    else:
        assert main.evaluate("node => node.scrollTop") == 300
        page.get_by_role("button", name="To the end").click()
        assert main.evaluate(left) < 2


NONE = "something else than an answer"
BROKEN: list[tuple[list[Any], str]] = [
    *(
        ([token(0, "Tin is"), chunk, END], NONE)
        for chunk in (
            *("null", "3", {"choices": 3}, {"choices": [{"delta": {"content": {}}}]}),
            *(token(1, "so", score="high"), token(1, "so", edge=[{"token": 3}]), {"usage": {}}),
            {"choices": [], "edgewise": {"pending": {"index": 1, "text": {}}}},
        )
    ),
    ([token(0, "Tin is"), "{"], NONE),
    ([{"error": {}}], "does not say why"),
    ([token(0, "Tin is")], "broke off"),
    ([token(0, "Tin is"), {"error": {"message": "The engine fell over."}}], "fell over"),
]


def test_a_chunk_that_is_none_ends_the_answer_with_a_sentence(page: Page) -> None:
    for chunks, said in BROKEN:
        answer = answered(page, chunks)
        expect(answer.get_by_role("alert")).to_contain_text(said)
        if len(chunks) > 1:
            expect(answer.locator(".text")).to_have_text("Tin is")


def test_what_is_no_edgewise_is_drawn_without(page: Page) -> None:
    """Another program at the port by now, or a proxy's own page."""
    for path in ("health", "v1/sent", "examples.json"):
        page.route(f"**/{path}", lambda route: route.fulfill(json={"status": "ok"}))
    page.reload()
    expect(page.locator("#trouble")).to_contain_text("does not answer")
    expect(page.locator("#first")).to_be_visible()
    answered(page)
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
    answered(page, [token(0, "Zinc"), END, usage()], "zinc")
    expect(page.locator(".text").last).to_have_text("Zinc")


BLOCKED = """
for (const name of ["localStorage", "sessionStorage", "caches"])
    Object.defineProperty(window, name, {
        get() { throw new DOMException("Access is denied.", "SecurityError"); },
    });
"""


def test_a_browser_that_blocks_storage_has_the_page(
    browser: Browser, linked: tuple[str, Link], problems: list[str]
) -> None:
    """It says so, and keeps nothing."""
    with browser.new_context() as context:
        context.add_init_script(BLOCKED)
        with opened(context, linked[0], problems) as page:
            reply(page, TIN)
            for _ in range(2):
                expect(page.locator("#warning")).to_contain_text("keeps nothing")
                ask(page, "tin")
                page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
                expect(page.locator(".turn")).to_have_count(1)
                expect(page.locator("#warning")).to_contain_text("keeps nothing")
                page.reload()
            expect(page.locator(".turn")).to_have_count(0)


def test_what_left_is_not_said_to_be_nothing_where_nobody_tells(
    page: Page, problems: list[str]
) -> None:
    refused = {"error": {"message": "With several keys the record is the operator's."}}
    page.route("**/v1/sent", lambda route: route.fulfill(status=403, json=refused))
    expect(page.locator("#sent-sum")).not_to_have_text("not known")
    answered(page)
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
