"""The focus after what a reader does, by keyboard; what is read out; which way texts go."""

from playwright.sync_api import Page, expect

from tests.server.page_asking import END, another_turn, ask, done, hold, reply, say, token, usage


def press(page: Page, name: str, *, begins: bool = True) -> None:
    """Press this button by keyboard; where that `begins` a turn, wait for its end."""
    button = page.get_by_role("button", name=name, exact=True).first
    if not begins:
        button.press("Enter")
        return
    with another_turn(page):
        button.press("Enter")
    done(page)


def test_what_begins_an_answer_and_goes_leaves_the_focus_with_it(page: Page) -> None:
    turn = page.locator(".turn")
    reply(page, [token(0, "Tin"), END, usage()])
    page.locator("#examples button").first.focus()
    with another_turn(page):
        page.keyboard.press("Enter")
    done(page)
    expect(turn).to_be_focused()
    press(page, "Ask again")
    expect(turn).to_be_focused()
    press(page, "Edit", begins=False)
    field = page.get_by_label("Question", exact=True)
    expect(field).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Edit")).to_be_focused()
    press(page, "Edit", begins=False)
    field.fill("tin")
    with another_turn(page):
        page.keyboard.press("Enter")
    done(page)
    expect(turn).to_be_focused()
    ask(page, "zinc")
    expect(page.get_by_label("Message")).to_be_focused()


def test_what_stays_keeps_the_focus(page: Page) -> None:
    reply(page, [token(0, "Tin"), END, usage()])
    ask(page, "tin")
    press(page, "Edit", begins=False)
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
    press(page, "To the end", begins=False)
    expect(main).to_be_focused()
    stop.press("Enter")
    expect(send).to_be_focused()
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    copy = page.get_by_role("button", name="Copy").last
    copy.press("Enter")
    expect(page.locator(".answer [role=status]").last).not_to_have_text("")
    expect(copy).to_be_focused()


def test_only_answers_and_what_is_wrong_are_read_out(page: Page, problems: list[str]) -> None:
    """Not how long each took, nor its buttons; of the server that it is gone, not what it runs."""
    trouble = page.get_by_role("banner").get_by_role("status")
    expect(trouble).to_have_text("")
    line = page.locator("header").bounding_box()
    reply(page, [token(0, "Tin"), END, usage()])
    page.route("**/health", lambda route: route.abort())
    ask(page, "tin")
    expect(trouble).to_contain_text("does not answer")
    # Nothing moves.
    assert page.locator("header").bounding_box() == line
    assert "Failed to load resource" in problems.pop()
    for place in (".meters", ".answer .actions", ".turn > .actions"):
        expect(page.locator(place)).to_have_attribute("aria-live", "off")
