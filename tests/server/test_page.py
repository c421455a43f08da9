"""The page in a real Chromium, against a real server, engine and link: answers, tokens, focus."""

import json
import re
from collections.abc import Sequence
from typing import Any

from playwright.sync_api import BrowserContext, Page, expect

from edgewise.testing.link import Link
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.doubles.wrapped_cloud import HeldCloud
from tests.server.conftest import opened
from tests.server.in_process import TEXT, answering_of, at_port
from tests.server.page_asking import (
    END,
    QUESTION,
    TIN,
    another_turn,
    answered,
    ask,
    ask_example,
    begin,
    candidate,
    choose,
    cloud_token,
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


def test_an_answer_shows_who_wrote_what(page: Page) -> None:
    # A share that no other test has spent.
    page.get_by_label("Cloud share").fill("29")
    ask(page, QUESTION)
    cloud = page.locator(".text .token.cloud").first
    edge = page.locator(".text .token:not(.cloud)").first
    drawn = (cloud.locator("mark"), edge)
    colours = [one.evaluate("node => getComputedStyle(node).color") for one in drawn]
    assert colours[0] != colours[1]
    assert page.locator(".text .pending").count() == 0
    page.locator(".meters summary").click()
    for counter, form in (
        ("tokens", r"^\d+ tokens$"),
        ("share", r"^\d+ by the cloud \(used \d+\.\d% of 29%\)$"),
        ("time", r"^\d+\.\d s$"),
        ("rate", r"^\d+ tokens/s$"),
        ("first", r"\d"),
        ("calls", r"^\d+ / \d+$"),
        ("read", r"^[\d,]+ / [\d,]+$"),
        ("bytes", r"^[1-9][\d,]* bytes$"),
    ):
        expect(page.locator(f"[data-counter={counter}]")).to_have_text(re.compile(form))
    cloud.hover()
    details = page.locator("#details")
    expect(details).to_contain_text("by the cloud")
    # What only who knows routers reads stands behind a word.
    expect(details.locator("details")).not_to_have_attribute("open", "")
    expect(details.locator("details")).to_contain_text(
        re.compile(r"critical, score \d\.\d+ \(threshold \d\.\d+")
    )
    expect(details.locator("tr")).not_to_have_count(1)


KINDS = [
    token(0, "Tin"),
    cloud_token(1, " is", " is"),
    cloud_token(2, " a", " no"),
    cloud_token(3, " metal", None),
    token(4, ".", reason="timeout"),
    END,
]


def test_kinds_of_tokens_are_told_without_colour_and_in_the_legend(page: Page) -> None:
    legend = page.get_by_label("Legend")
    shown = legend.locator("li").filter(visible=True)
    expect(shown).to_have_count(7)
    answered(page, [token(0, "Tin"), cloud_token(1, " a", " no"), END, usage()])
    expect(shown).to_have_count(2)
    answered(page, KINDS)
    expect(shown).to_have_count(5)
    drawn = page.locator(".turn").last.locator(".text .token")
    styles = drawn.evaluate_all(
        """nodes => nodes.map((node) => {
            const style = getComputedStyle(node.querySelector("mark") ?? node);
            return [style.textDecoration.split(" rgb")[0], style.fontWeight].join();
        })"""
    )
    assert len(set(styles)) == 5
    classes = [node.get_attribute("class") for node in drawn.all()]
    kinds = ["", "cloud confirmed", "cloud changed", "cloud alone", "fallback"]
    assert classes == [f"token {kind}".strip() for kind in kinds]
    assert {one.get_attribute("class") for one in legend.locator(".token").all()} > set(classes)


def test_what_the_edge_would_have_written_stands_above(page: Page) -> None:
    """Struck, and apart: "4" changed to "3" before "4" is no "434"."""
    answered(page, [token(0, "It makes "), cloud_token(1, "3", "4"), token(2, "4."), END])
    struck, changed = page.locator(".text rt del"), page.locator(".text .changed mark")
    expect(struck).to_have_text("4")
    assert "line-through" in struck.evaluate("node => getComputedStyle(node).textDecoration")
    above, below = struck.bounding_box(), changed.bounding_box()
    assert above
    assert below
    assert above["y"] + above["height"] <= below["y"] + below["height"] / 2
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Show what the edge").uncheck()
    expect(struck).to_have_count(0)
    expect(page.locator(".text")).to_have_text("It makes 34.")
    page.reload()
    expect(page.locator(".text")).to_have_text("It makes 34.")


STANDS = {"reason": "verified", "threshold": 0.3}


def verified(index: int, text: str, ratio: float = 1.0) -> dict[str, Any]:
    return token(index, text, **STANDS, ratio=ratio)


def corrected(index: int, text: str, draft: str, ratio: float) -> dict[str, Any]:
    made = cloud_token(index, text, draft)
    made["edgewise"]["token"] |= {"reason": "corrected", "threshold": 0.3, "ratio": ratio}
    return made


MANY = [cloud_token(place, f"{place}", "x") for place in range(5)]
CORRECTED = [corrected(place, f"{place}", "x", 0.1) for place in range(5)]
LOW = token(0, "Tin", reason="below_threshold", score=0.2, threshold=0.9)
CUT = {"choices": [{"delta": {}, "finish_reason": "length"}]}
TOKEN = token(0, "Tin")
SENTENCES: list[tuple[list[Any], Sequence[str]]] = [
    ([TOKEN, cloud_token(1, " a", " no"), token(2, "."), END], ["1 of 3 tokens: no → a"]),
    ([*MANY, token(5, "."), END], ["5 of 6 tokens: x → 0, x → 1, x → 2 and 2 more"]),
    ([TOKEN, cloud_token(1, " is", " is"), token(2, "."), END, usage()],
     ["asked for 1 of 3 tokens and agreed"]),
    ([cloud_token(0, "Tin", "tin"), cloud_token(1, "", "."), END], ["wrote all 2 tokens"]),
    ([TOKEN, cloud_token(1, "", "."), END], ["1 of 2 tokens: . → ∎"]),
    # By a cloud that verifies.
    ([verified(0, "Tin"), verified(1, "."), END, usage()], ["Verified by", "none of 2"]),
    ([verified(0, "Tin"), corrected(1, " a", " no", 0.1), verified(2, " b", 0.344), END, usage()],
     ["Verified by", "1 of 3", "tokens: no → a", "“b”, 0.34 of"]),
    ([*CORRECTED, END, usage()], ["Verified by", "5 of 5", "x → 2 and 2 more."]),
    ([verified(0, "Tin"), token(1, "."), token(2, "!", reason="timeout"), END, usage()],
     ["Verified by", "no answer"]),
    # Where nothing was routed, and where an answer goes round in circles.
    ([LOW, END, usage()], ["nearest: 0.200 of 0.900"]),
    ([*(token(place, "a") for place in range(3)), CUT, usage(repeats=True)], ["repeats itself"]),
]  # fmt: skip


def test_a_sentence_says_what_the_cloud_did(page: Page) -> None:
    page.get_by_label("Cloud share").fill("0")
    ask(page, "Tell me about tin.")
    expect(page.locator(".caption")).to_contain_text("the share is 0")
    page.get_by_label("Cloud share").fill("5")
    for chunks, told in SENTENCES:
        turn = answered(page, chunks)
        for part in told:
            expect(turn.locator(".caption")).to_contain_text(part)
    # Nobody knows what is right.
    expect(page.locator(".right, .wrong")).to_have_count(0)


def test_one_thing_is_called_a_change(page: Page) -> None:
    """Another token than the edge would have written, be that its likeliest or another draw."""
    same = cloud_token(1, " a", " a")
    same["edgewise"]["token"] |= {"edge": [candidate(" no"), candidate(" a")]}
    other = cloud_token(1, " a", " no")
    other["edgewise"]["token"] |= {"edge": [candidate(" a"), candidate(" no")]}
    counted = usage(correction_tokens=3, cloud_calls=1, cloud_share=0.3)
    for chunk, kind, said, counts in (
        (same, "confirmed", "1 of 3 tokens and agreed", "0 / 1"),
        (other, "changed", "1 of 3 tokens: no → a", "1 / 1"),
    ):
        turn = answered(page, [TOKEN, chunk, token(2, "."), END, counted])
        expect(turn.locator(".caption")).to_contain_text(said)
        expect(turn.locator(f".text .{kind}")).to_have_count(1)
        turn.locator(".meters summary").click()
        expect(turn.locator("[data-counter=calls]")).to_have_text(counts)
    page.reload()
    for kind in ("confirmed", "changed"):
        expect(page.locator(f".text .{kind}")).to_have_count(1)


def test_a_cloud_that_was_faster_is_said_to_be(page: Page) -> None:
    hold(page)
    choose(page, "Side by side")
    begin(page, "tin")
    until(page, "window.replies.length === 3")
    for wrote in ("the cloud", "the edge", "the pair"):
        say(page, token(0, wrote), END, over=True)
        page.evaluate("replies.pop()")
        page.wait_for_timeout(50)
    done(page)
    expect(page.locator(".caption", has_text="cloud alone was faster")).to_have_count(1)


def test_what_was_used_of_the_share_and_why_no_more(page: Page) -> None:
    low = {"score": 0.1, "threshold": 0.5, "reason": "below_threshold"}
    said = [cloud_token(0, "Tin", "Tin"), *(token(place, " ", **low) for place in range(1, 200))]
    spent = [*said[:7], token(7, " ", reason="budget"), *said[8:]]
    stands = [corrected(0, "Tin", "Zinc", 0.1), *(verified(place, " a") for place in range(1, 40))]
    for share, chunks, used, told, untold in (
        (5, said, 0.005, "below its threshold", "above the share"),
        (5, spent, 0.005, "the share is spent for now", "above the share"),
        # Where the cloud verifies, no router is the reason.
        (20, stands, 0.025, "Less than allowed", "router"),
    ):
        page.get_by_label("Cloud share").fill(f"{share}")
        turn = answered(page, [*chunks, END, usage(cloud_calls=1, cloud_share=used)])
        counted = f"1 by the cloud (used {100 * used:.1f}% of {share}%)"
        expect(turn.locator("[data-counter=share]")).to_have_text(counted)
        turn.locator(".meters summary").click()
        expect(turn.locator(".meters")).to_contain_text(told)
        expect(turn.locator(".meters")).not_to_contain_text(untold)


def test_the_cloud_alone_has_neither_drafts_nor_consults(page: Page) -> None:
    bodies = sent_bodies(page)
    choose(page, "Cloud")
    answered(page, [cloud_token(0, "Tin", "Tin"), cloud_token(1, " is", " a"), END, usage()])
    choose(page, "Pair")
    ask(page, "tin")
    asked = [json.loads(body)["edgewise"] for body in bodies]
    assert [one["pending"] for one in asked] == [False, True]
    cloud = page.locator(".turn").first
    cloud.locator(".meters summary").click()
    expect(cloud.locator("[data-counter=calls]")).to_have_count(0)
    expect(cloud.locator(".text .alone")).to_have_count(2)
    for shown in range(2):
        cloud.locator(".text .token").nth(shown).hover()
        expect(page.locator("#details")).to_contain_text("written by the cloud")
        expect(page.locator("#details")).not_to_contain_text("edge would")


def test_side_by_side_all_draw_alike(page: Page) -> None:
    """So that luck tells no two of them apart."""
    bodies = sent_bodies(page)
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Temperature").fill("1.5")
    page.keyboard.press("Escape")
    page.get_by_label("Cloud share").fill("0")
    choose(page, "Side by side")
    ask(page, QUESTION)
    expect(page.locator(".question")).to_have_count(1)
    pair, edge, _ = page.locator(".text").all_inner_texts()
    assert pair == edge
    places = [column.bounding_box() for column in page.locator(".answer").all()]
    assert len(places) == 3
    for side in ("y", "height", "width"):
        assert len({round(place[side]) for place in places if place}) == 1
    with whole_turn(page):
        page.get_by_role("button", name="Ask again").click()
    seeds = [json.loads(body)["seed"] for body in bodies]
    assert len({*seeds[:3]}) == len({*seeds[3:]}) == 1
    assert seeds[0] != seeds[3]
    choose(page, "Edge")
    ask(page, QUESTION)
    assert "seed" not in json.loads(bodies[-1])
    expect(page.locator(".turn").last.locator(".answer")).to_have_count(1)
    expect(page.locator(".turn").last.locator(".text .cloud")).to_have_count(0)


def test_tokens_are_reached_by_keyboard(page: Page) -> None:
    ask(page, QUESTION)
    details = page.locator("#details")
    page.locator(".text").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator(".token.chosen")).to_have_attribute("data-number", "2")
    expect(details).to_contain_text("written by the")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Escape")
    expect(details).to_be_hidden()
    expect(page.locator(".text")).to_be_focused()


def test_the_drawer_says_what_left(page: Page, linked: tuple[str, Link]) -> None:
    drawer = page.locator("#sent")
    # Only what is read behind an answer has it; the record is there from the start.
    with page.expect_response("**/v1/sent"):
        ask(page, QUESTION)
    expect(page.locator("#sent-sum")).to_have_text(re.compile(r"[1-9][\d,]* bytes"))
    drawer.locator("summary").click()
    rows = drawer.locator("tbody tr")
    expect(rows.first).to_contain_text(linked[1].url.removeprefix("http://"))
    told = page.request.get(f"{linked[0]}/v1/sent").json()["data"]
    shown = len(told) + len({one["conversation"] for one in told})
    expect(rows).to_have_count(shown)
    choose(page, "Edge")
    with page.expect_response("**/v1/sent"):
        ask(page, QUESTION)
    expect(rows).to_have_count(shown)


def test_a_local_conversation_stays_local_until_a_new_one(page: Page) -> None:
    bodies = sent_bodies(page)
    switch = page.get_by_role("button", name=re.compile("^Keep"))
    page.get_by_label("Cloud share").fill("30")
    choose(page, "Cloud")
    switch.click()
    # It is seen, and what it rules out is closed.
    expect(page.locator("#local-note")).to_contain_text("leaves this device")
    for name in ("Cloud", "Side by side"):
        expect(page.get_by_role("radio", name=name, exact=True)).to_be_disabled()
    expect(page.get_by_label("Cloud share")).to_be_disabled()
    expect(page.get_by_role("radio", name="Pair")).to_be_checked()
    ask(page, "Tell me in private about tin.")
    expect(page.locator(".caption")).to_contain_text("kept here")
    expect(page.locator(".question .badge")).to_have_count(1)
    switch.click(force=True)
    expect(switch).to_have_attribute("aria-pressed", "true")
    ask(page, "And in private about gold.")
    assert bodies[-1].count('"edgewise":{"cloud":"none"}') == 3
    # Kept, and as local as it was.
    page.reload()
    expect(page.locator(".question .badge")).to_have_count(2)
    expect(switch).to_be_disabled()
    ask(page, "And in private about gold.")
    assert bodies[-1].count('"edgewise":{"cloud":"none"}') == 5
    expect(page.locator(".text .cloud")).to_have_count(0)
    page.get_by_role("button", name="New chat").click()
    expect(switch).to_have_attribute("aria-pressed", "false")
    expect(switch).to_be_enabled()
    choose(page, "Pair")
    ask(page, QUESTION)
    expect(page.locator(".text .cloud")).not_to_have_count(0)


def test_a_chat_that_is_kept_here_stops_what_is_written(page: Page) -> None:
    """The running answer asks the cloud, and the page says that nothing leaves from here on."""
    hold(page)
    begin(page, "tin")
    say(page, token(0, "Tin "))
    expect(page.locator(".answer .text")).to_contain_text("Tin")
    page.get_by_role("button", name=re.compile("^Keep")).click()
    expect(page.locator("#local-note")).to_contain_text("leaves this device")
    expect(page.get_by_text("Stopped.")).to_be_visible()
    done(page)
    expect(page.locator(".answer .text")).to_contain_text("Tin")


def test_a_cloud_that_is_cut_off_is_named(page: Page, linked: tuple[str, Link]) -> None:
    _, link = linked
    link.refuse()
    try:
        page.get_by_label("Cloud share").fill("30")
        ask(page, QUESTION)
        expect(page.locator(".problem")).to_contain_text("cannot be reached (unavailable)")
        fallen = page.locator(".text .fallback")
        expect(fallen).not_to_have_count(0)
        fallen.first.hover()
        expect(page.locator("#details")).to_contain_text("unavailable")
        expect(page.locator(".text .cloud")).to_have_count(0)
    finally:
        link.restore()


def test_what_an_answer_cost(page: Page) -> None:
    """Shown where the server was told a price, and nowhere else."""
    ask(page, QUESTION)
    page.locator(".meters summary").click()
    expect(page.locator("[data-counter=calls]")).to_have_text(re.compile(r"\d"))
    expect(page.locator("[data-counter=paid]")).to_be_hidden()
    with serving("--price", "2000,2000,2000", "--router", "constant:1") as url:
        priced = page.context.new_page()
        priced.goto(url)
        expect(priced.locator("#models")).to_contain_text("+")
        ask(priced, QUESTION)
        priced.locator(".meters summary").click()
        for counter in ("paid", "saved"):
            expect(priced.locator(f"[data-counter={counter}]")).to_have_text(re.compile(r"0\.\d"))
        expect(priced.locator(".text .token").first).to_have_attribute("data-reason", "critical")
        priced.locator(".token[data-reason=cost]").first.hover()
        expect(priced.locator("#details")).to_contain_text("would cost more")
        priced.close()


def test_the_page_asks_as_the_server_says_that_it_does(
    page: Page, linked: tuple[str, Link]
) -> None:
    """The bundled edge is greedy, others are drawn from; until the dial is touched flags hold."""
    bodies = sent_bodies(page)
    pair = page.request.get(f"{linked[0]}/health").json()

    def asked(**other: Any) -> Any:
        """The request to a server of which other things are so."""
        page.route("**/health", lambda route: route.fulfill(json={**pair, **other}))
        page.reload()
        expect(page.locator("#models")).to_contain_text("+")
        ask(page, "tin")
        return json.loads(bodies[-1])

    reply(page, TIN)
    greedy = asked()
    assert (pair["temperature"], pair["min_p"]) == (0, 0)
    assert (greedy["temperature"], "min_p" in greedy) == (0, False)
    drawn = asked(temperature=0.7, min_p=0.05)
    assert (drawn["temperature"], drawn["min_p"]) == (0.7, 0.05)
    asked(cloud_share=None, verify="exact")
    expect(page.locator("#share-value")).to_have_text("exact")
    assert asked(cloud_share=None, verify="off", threshold=0.4)["model"] == "edgewise"
    expect(page.locator("#share-value")).to_have_text("threshold 0.4")
    page.get_by_label("Cloud share").fill("20")
    expect(page.locator("#share-value")).to_have_text("20%")
    ask(page, "tin")
    assert json.loads(bodies[-1])["model"] == "edgewise@0.2"


SAID = "sky:"


def test_a_running_answer_is_disconnected(shared: BrowserContext, problems: list[str]) -> None:
    """It waits for a cloud that says nothing; from there on the edge writes it."""
    cloud = HeldCloud()
    edge = ScriptedEdge(replying(TEXT, prompt=SAID))
    with (
        at_port(answering_of(edge, cloud, deadline=5.0)) as url,
        opened(shared, url, problems) as page,
    ):
        page.get_by_label("Cloud share").fill("15")
        begin(page, SAID)
        stop = page.get_by_role("button", name="Stop")
        disconnect = page.get_by_role("button", name="Disconnect")
        # Both stand where they stood when the answer began, whatever it grows to.
        expect(disconnect).to_be_enabled()
        places = [one.bounding_box() for one in (disconnect, stop)]
        disconnect.click()
        assert [one.bounding_box() for one in (disconnect, stop)] == places or stop.count() == 0
        done(page)
        expect(page.locator(".answer .text")).to_contain_text(TEXT)
        expect(page.locator(".caption")).to_contain_text("disconnected the cloud after 0 tokens")
        expect(page.locator(".problem")).to_have_text("")
        expect(page.locator(".answer .token.cloud")).to_have_count(0)


def press(page: Page, name: str) -> None:
    """Press this button by keyboard."""
    page.get_by_role("button", name=name, exact=True).first.press("Enter")


def test_what_begins_an_answer_and_goes_leaves_the_focus_with_it(page: Page) -> None:
    turn = page.locator(".turn")
    reply(page, TIN)
    page.locator("#examples button").first.focus()
    with whole_turn(page):
        page.keyboard.press("Enter")
    expect(turn).to_be_focused()
    with whole_turn(page):
        press(page, "Ask again")
    expect(turn).to_be_focused()
    press(page, "Edit")
    field = page.get_by_label("Question", exact=True)
    expect(field).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Edit")).to_be_focused()
    press(page, "Edit")
    field.fill("tin")
    with whole_turn(page):
        page.keyboard.press("Enter")
    expect(turn).to_be_focused()
    ask(page, "zinc")
    expect(page.get_by_label("Message")).to_be_focused()


def test_what_stays_keeps_the_focus(page: Page) -> None:
    answered(page)
    press(page, "Edit")
    hold(page)
    send = page.get_by_role("button", name="Send")
    page.get_by_label("Message").fill("zinc")
    # Drawn a frame later; Enter on a button that is still disabled is lost.
    expect(send).to_be_enabled()
    with another_turn(page):
        send.press("Enter")
    stop = page.get_by_role("button", name="Stop")
    expect(stop).to_be_focused()
    # Nothing that would be ignored looks as if it did something.
    expect(page.get_by_role("button", name="Ask")).to_be_disabled()
    say(page, token(0, "one\n" * 200))
    expect(page.locator(".text").last).to_contain_text("one")
    main = page.locator("main")
    main.evaluate("node => { node.scrollTop = 10 }")
    press(page, "To the end")
    expect(main).to_be_focused()
    stop.press("Enter")
    expect(send).to_be_focused()
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    copy = page.get_by_role("button", name="Copy").last
    copy.press("Enter")
    expect(page.locator(".answer [role=status]").last).not_to_have_text("")
    expect(copy).to_be_focused()


def test_only_answers_and_what_is_wrong_are_read_out(here: Page, problems: list[str]) -> None:
    """Not how long each took, nor its buttons; of the server that it is gone, not what it runs."""
    trouble = here.get_by_role("banner").get_by_role("status")
    expect(trouble).to_have_text("")
    line = here.locator("header").bounding_box()
    reply(here, TIN)
    here.route("**/health", lambda route: route.abort())
    ask(here, "tin")
    expect(trouble).to_contain_text("does not answer")
    # Nothing moves.
    assert here.locator("header").bounding_box() == line
    assert "Failed to load resource" in problems.pop()
    for place in (".meters", ".answer .actions", ".turn > .actions"):
        expect(here.locator(place)).to_have_attribute("aria-live", "off")


def about(page: Page, number: int) -> str:
    """What the panel says of a token."""
    page.locator(f".text [data-number='{number}']").last.hover()
    return page.locator("#details").inner_text()


def test_a_tokens_panel_says_what_the_cloud_holds_of_it(page: Page) -> None:
    said = [
        verified(0, "Tin"),
        verified(1, " is", 0.34),
        corrected(2, " 3", " 4", 0.02),
        token(3, ".", reason="timeout"),
        token(4, "!", reason="circuit_open"),
    ]
    answered(page, [*said, END, usage(cloud_calls=2)])
    assert "too" in about(page, 0)
    assert "0.34 of" in about(page, 1)
    page.locator(".text .changed").click()
    for part in ("“4”", "0.02 of", "needs 0.3", "ratio 0.020 (threshold 0.300)"):
        expect(page.locator("#details")).to_contain_text(part)
    page.get_by_role("button", name="Close").click()
    for number, why in ((3, "no answer"), (4, "paused")):
        assert "not verified: " in about(page, number)
        assert why in about(page, number)
    # A reload keeps what was said of them.
    page.reload()
    assert "0.34 of" in about(page, 1)


WORDS = re.findall(r" \w+", " Ada Lovelace wrote the first programs for a machine never built")


def pending(index: int, text: str) -> dict[str, Any]:
    return {"edgewise": {"pending": {"index": index, "text": text}}}


def test_blocks_of_drafts_are_dimmed_until_they_are_verified(page: Page) -> None:
    words = [word for _ in range(7) for word in WORDS]
    drafts, text = page.locator(".text .pending"), page.locator(".text")

    def colour(where: str) -> Any:
        return text.locator(where).first.evaluate("node => getComputedStyle(node).color")

    page.set_viewport_size({"width": 390, "height": 800})
    hold(page)
    begin(page, "Who wrote the first programs?")
    say(page, *(verified(place, word) for place, word in enumerate(words[:20])))
    say(page, *(pending(place, word) for place, word in enumerate(words[20:68], 20)))
    expect(drafts).to_have_count(48)
    assert colour(".pending") != colour("[data-number]")
    # Those that stand are drawn where they were.
    before = text.bounding_box()
    say(page, *(verified(place, word) for place, word in enumerate(words[20:40], 20)))
    expect(drafts).to_have_count(28)
    assert text.bounding_box() == before
    rolled_back = {"edgewise": {"rolled_back": {"index": 40}}}
    say(page, corrected(40, " other", words[40], 0.02), rolled_back)
    expect(drafts).to_have_count(0)
    say(page, *(pending(place, word) for place, word in enumerate(words[41:70], 41)))
    expect(drafts).to_have_count(29)
    say(page, *(verified(place, word, 0.34) for place, word in enumerate(words[41:70], 41)))
    say(page, END, usage(cloud_calls=4, cloud_share=0.02), over=True)
    done(page)
    expect(text.locator("[data-number]")).to_have_count(70)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_the_bundled_pair_verifies_and_is_shown_at_the_pace_of_larger_models(here: Page) -> None:
    """Both models in the server's process; the pair is not last in its own demonstration."""
    details = here.locator("#details")
    ask_example(here)
    expect(here.locator(".caption")).to_contain_text("Verified by")
    here.locator(".text [data-reason=verified]").first.hover()
    expect(details).to_contain_text(re.compile("too|of its likeliest"))
    here.locator(".text .changed").first.hover()
    expect(details).to_contain_text("ratio")
    expect(details).to_contain_text("of the cloud's")
    here.get_by_role("button", name="New chat").click()
    choose(here, "Side by side")
    ask_example(here)
    times = here.locator("[data-counter=time]").all_inner_texts()
    pair, _, cloud = (float(one.removesuffix(" s")) for one in times)
    assert pair < cloud
    here.locator(".meters summary").first.click()
    expect(here.locator(".meters").first).to_contain_text("80 ms away")
