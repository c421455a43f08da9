"""What a reader does while something is under way: the page goes on from what was done last."""

from playwright.sync_api import Page, expect

from tests.server.page_asking import (
    END,
    another_turn,
    ask,
    hold,
    reply,
    say,
    sent_bodies,
    token,
    until,
    usage,
)


def test_what_is_still_drawn_of_an_old_conversation_does_nothing(page: Page) -> None:
    """A click may come before the page is drawn without it."""
    reply(page, [token(0, "Tin"), END, usage()])
    ask(page, "tin")
    hold(page)
    page.evaluate(
        """() => {
            const named = (name) => [...document.querySelectorAll("button")].find(
                (button) => button.textContent === name);
            const buttons = ["New chat", "Regenerate"].map(named);
            for (const button of buttons) button?.click();
        }"""
    )
    expect(page.locator("#first")).to_be_visible()
    assert page.evaluate("replies.length") == 0


def test_a_finger_that_goes_up_slowly_leaves_the_end(page: Page) -> None:
    """Each draw between two of its few pixels took the reader back."""
    hold(page)
    with another_turn(page):
        page.get_by_label("Message").fill("tin")
        page.keyboard.press("Enter")
    say(page, token(0, "one\n" * 200))
    main = page.locator("main")
    until(page, "document.querySelector('main').scrollTop > 1000")
    before = main.evaluate("node => node.scrollTop")
    for step in range(1, 5):
        main.evaluate(
            "node => new Promise((told) => {"
            " node.addEventListener('scroll', () => requestAnimationFrame(told), { once: true });"
            " node.scrollTop -= 15; })"
        )
        say(page, token(step, "two\n"))
        expect(page.locator(".text .token")).to_have_count(step + 1)
    assert main.evaluate("node => node.scrollTop") == before - 60
    page.get_by_role("button", name="To the end").click()
    say(page, token(5, "three\n" * 20))
    expect(page.locator(".text .token")).to_have_count(6)
    assert main.evaluate("n => n.scrollHeight - n.scrollTop - n.clientHeight") < 2


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


def test_the_time_of_an_answer_ends_with_it(page: Page) -> None:
    """Also where the server never says how long it was: one that was stopped, then reloaded."""
    hold(page)
    with another_turn(page):
        page.get_by_label("Message").fill("tin")
        page.keyboard.press("Enter")
    say(page, token(0, "Tin"), token(1, " is"))
    expect(page.locator(".text .token")).to_have_count(2)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    counters = page.locator(".counters dd")
    shown = counters.all_text_contents()
    page.get_by_label("Cloud share").fill("9")
    expect(page.locator("#share-value")).to_have_text("9%")
    assert counters.all_text_contents() == shown
    page.reload()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    assert counters.all_text_contents() == shown
