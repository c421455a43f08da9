"""Asking on the page, and replies that no model of ours writes by itself."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Page, Route, expect

from edgewise.evaluation.tasks.pocketqa import pocketqa

QUESTION = pocketqa().questions[1].prompt
PATIENCE = 60_000
"""Milliseconds that a busy machine may take; nobody waits for them elsewhere."""


def ask(page: Page, text: str) -> None:
    """Ask, and wait for the whole answer."""
    with another_turn(page):
        page.get_by_label("Message").fill(text)
        page.keyboard.press("Enter")
    done(page)


def play(page: Page, title: str = "") -> None:
    """Play the first screen's recording of this title, else its first, to the end."""
    with another_turn(page):
        page.get_by_role("button", name=f"Play: {title}").first.click()
    done(page)


@contextmanager
def another_turn(page: Page) -> Iterator[None]:
    """What is done within begins a turn; it is there at the end."""
    page.evaluate("document.querySelectorAll('.turn').forEach((turn) => turn.dataset.seen = 1)")
    yield
    expect(page.locator(".turn:not([data-seen])")).not_to_have_count(0)


def done(page: Page) -> None:
    """Wait for the end of what is being written.

    The page draws once a frame: whoever made it write waits for the turn first, else this may see
    the page as it was before.
    """
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def until(page: Page, condition: str) -> None:
    """Wait for a condition in JavaScript; the page itself may not evaluate text."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def token(index: int, text: str, **more: Any) -> dict[str, Any]:
    """A chunk with a token of the edge's."""
    about = {"index": index, "id": index, "text": text, "source": "edge", "reason": "critical"}
    measured = {"score": None, "seconds": 0.1, "wait": 0, "edge": [], "cloud": []}
    told = {"token": {**about, **measured, **more}}
    return {"choices": [{"delta": {"content": text}}], "edgewise": told}


END: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


def reply(page: Page, chunks: Sequence[Mapping[str, Any] | str]) -> None:
    """Whatever is asked from now on, these chunks answer it; text goes as it is."""
    sent = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    lines = [f"data: {chunk}\n\n" for chunk in sent]
    body = "".join([*lines, "data: [DONE]\n\n"])

    def answer(route: Route) -> None:
        route.fulfill(body=body, content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)


def sent_bodies(page: Page) -> list[str]:
    """Bodies of the page's requests from now on, as they are made."""
    bodies: list[str] = []

    def note(request: Any) -> None:
        if request.post_data:
            bodies.append(request.post_data)

    page.on("request", note)
    return bodies
