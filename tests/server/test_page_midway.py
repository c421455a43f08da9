"""What a reader does while something is under way: the page goes on from what was done last."""

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


def experiments(page: Page) -> None:
    """An answered question, and what can be tried with it; what is asked from now on waits."""
    reply(page, [token(0, "Tin"), END, usage()])
    ask(page, "tin")
    page.locator("#experiments summary").click()
    hold(page)


def test_stop_ends_the_replays_that_wait_as_well(page: Page) -> None:
    experiments(page)
    slider = page.get_by_label("Replay at a share of")
    with another_turn(page):
        slider.fill("3")
    slider.fill("7")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()
    done(page)
    assert page.evaluate("replies.length") == 1
    expect(page.locator("#share-value")).to_have_text("3%")


def test_a_new_chat_ends_the_replays_that_wait(page: Page) -> None:
    experiments(page)
    slider = page.get_by_label("Replay at a share of")
    with another_turn(page):
        slider.fill("3")
    slider.fill("7")
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#first")).to_be_visible()
    with another_turn(page):
        page.get_by_label("Message").fill("zinc")
        page.keyboard.press("Enter")
    say(page, token(0, "Zinc"), END, over=True)
    done(page)
    expect(page.locator(".text")).to_have_text("Zinc")
    assert page.evaluate("replies.length") == 2


def test_no_replay_is_kept_for_later_while_another_answer_is_written(page: Page) -> None:
    experiments(page)
    slider = page.get_by_label("Replay at a share of")
    with another_turn(page):
        page.get_by_label("Message").fill("zinc")
        page.keyboard.press("Enter")
    expect(slider).to_be_disabled()
    say(page, END, over=True)
    expect(slider).to_be_enabled()


def test_a_replay_is_a_point_whatever_the_server_does_next(page: Page) -> None:
    """Its record and its health were waited for, and another replay took the point meanwhile."""
    experiments(page)
    page.route("**/health", lambda route: None)
    slider = page.get_by_label("Replay at a share of")
    for share in (3, 7):
        with another_turn(page):
            slider.fill(str(share))
        say(page, token(0, "Tin"), END, usage(cloud_share=share / 100), over=True)
        done(page)
    lines = page.locator(".replays li")
    expect(lines).to_have_count(2)
    assert [line[:34] for line in lines.all_inner_texts()] == [
        "asked for 3%: the cloud wrote 3.0%",
        "asked for 7%: the cloud wrote 7.0%",
    ]


def test_what_is_still_drawn_of_an_old_conversation_does_nothing(page: Page) -> None:
    """A click may come before the page is drawn without it."""
    experiments(page)
    page.evaluate(
        """() => {
            const named = (name) => [...document.querySelectorAll("button")].find(
                (button) => button.textContent === name);
            const buttons = ["New chat", "Regenerate", "Race the last question"].map(named);
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
