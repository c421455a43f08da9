"""What a reader does while something is under way: the page goes on from what was done last."""

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
