"""Asking on the page, and replies that no model of ours writes by itself."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from playwright.sync_api import Page, Route, expect

from edgewise.evaluation.tasks.pocketqa import pocketqa

QUESTION = pocketqa().questions[1].prompt
PATIENCE = 60_000
"""Milliseconds that a busy machine may take; nobody waits for them elsewhere."""


def ask(page: Page, text: str) -> None:
    """Ask, and wait for the whole answer."""
    turns = page.locator(".turn")
    before = turns.count()
    page.get_by_label("Message").fill(text)
    page.keyboard.press("Enter")
    expect(turns).not_to_have_count(before)
    done(page)


def done(page: Page) -> None:
    """Wait for the end of what is being written."""
    expect(page.get_by_role("button", name="Send")).to_be_visible()


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
