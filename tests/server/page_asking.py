"""Asking on the page, and replies that no model of ours writes by itself."""

import json
import re
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

SIZES = {"wide": (1280, 760), "phone": (390, 800)}
QUESTION = pocketqa().questions[1].prompt
PATIENCE = 60_000
"""Milliseconds that a busy machine may take; nobody waits for them elsewhere."""


def begin(page: Page, text: str) -> None:
    """Ask, and wait until the turn is there."""
    with another_turn(page):
        page.get_by_label("Message").fill(text)
        page.keyboard.press("Enter")


def ask(page: Page, text: str) -> None:
    """Ask, and wait for the whole answer."""
    begin(page, text)
    done(page)


def ask_example(page: Page, title: str = "A sum") -> None:
    """Ask the first screen's question of this title, and wait for the whole answer."""
    with whole_turn(page):
        page.locator("#examples button", has_text=re.compile(f"^{title}")).click()


def choose(page: Page, mode: str) -> None:
    """Who writes from now on."""
    page.get_by_role("radio", name=mode, exact=True).check()


COMPOSED = """(field, [key, isComposing, keyCode]) => {
    field.value = "にほんご";
    const about = { bubbles: true, cancelable: true };
    if (!isComposing) {
        field.dispatchEvent(new CompositionEvent("compositionstart", about));
        field.dispatchEvent(new CompositionEvent("compositionend", { ...about, data: "日本語" }));
    }
    field.dispatchEvent(new KeyboardEvent("keydown", { ...about, key, isComposing, keyCode }));
}"""
COMPOSING = [(True, 229), (False, 229)]
"""What the key that confirms a composition says of itself: in most browsers, and in Safari."""


def compose(field: Locator, key: str, how: tuple[bool, int]) -> None:
    """Press a key that belongs to an input method, in a field where something was composed."""
    field.evaluate(COMPOSED, [key, *how])


@contextmanager
def another_turn(page: Page) -> Generator[None]:
    """What is done within begins a turn; it is there at the end."""
    page.evaluate("document.querySelectorAll('.turn').forEach((turn) => turn.dataset.seen = 1)")
    yield
    expect(page.locator(".turn:not([data-seen])")).not_to_have_count(0)


@contextmanager
def whole_turn(page: Page) -> Generator[None]:
    """What is done within begins a turn; it is written at the end."""
    with another_turn(page):
        yield
    done(page)


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


def candidate(text: str) -> dict[str, object]:
    return {"token": text, "logprob": -0.1, "bytes": list(text.encode())}


def cloud_token(index: int, text: str, guess: str | None) -> dict[str, Any]:
    """A chunk with a token of the cloud's, where the edge would have written `guess`."""
    if guess is None:
        return token(index, text, source="cloud", cloud=[candidate(text)])
    draft = {"id": index if guess == text else 1000, "text": guess}
    return token(
        index, text, source="cloud", edge=[candidate(guess)], cloud=[candidate(text)], draft=draft
    )


END: dict[str, Any] = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


def usage(**more: Any) -> dict[str, Any]:
    """A chunk with the counts of an answer that asked nobody."""
    sent = {"host": None, "consults": 0, "bytes": 0}
    counts = {"cloud_share": 0.0, "correction_tokens": 0, "cloud_calls": 0, "failed_calls": 0}
    read = {"cloud_prompt_cached": 0, "cloud_prompt_computed": 0, "cloud_completion_tokens": 0}
    own = {**counts, **read, "sent": sent, "cost": None, **more}
    return {"choices": [], "usage": {"edgewise": own}}


def reply(page: Page, chunks: Sequence[Mapping[str, Any] | str]) -> None:
    """Whatever is asked from now on, these chunks answer it; text goes as it is."""
    sent = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    lines = [f"data: {chunk}\n\n" for chunk in sent]
    body = "".join([*lines, "data: [DONE]\n\n"])

    def answer(route: Route) -> None:
        route.fulfill(body=body, content_type="text/event-stream")

    page.route("**/v1/chat/completions", answer)


TIN: Sequence[Mapping[str, Any]] = (token(0, "Tin"), END, usage())


def answered(
    page: Page, chunks: Sequence[Mapping[str, Any] | str] = TIN, text: str = "tin"
) -> Locator:
    """Ask this, and what is asked from now on is answered with these chunks; returns the turn."""
    reply(page, chunks)
    ask(page, text)
    return page.locator(".turn").last


HELD = """() => {
    window.replies = [];
    const own = window.fetch;
    window.fetch = (to, options) => {
        if (!String(to).endsWith("completions")) return own(to, options);
        const reply = { cancelled: false };
        const body = new ReadableStream({
            start(into) { reply.into = into; },
            cancel() { reply.cancelled = true; },
        });
        options.signal?.addEventListener("abort", () => reply.into.error(options.signal.reason));
        replies.push(reply);
        return Promise.resolve(new Response(body));
    };
}"""


def hold(page: Page) -> None:
    """Whatever is asked from now on is answered by `say`: `replies` in the page."""
    page.evaluate(HELD)


def say(page: Page, *chunks: Mapping[str, Any] | str, over: bool = False) -> None:
    """The reply that was asked for last says this, and then nothing, or its end where `over`."""
    sent = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    page.evaluate(
        """([sent, over]) => {
            const { into } = replies.at(-1);
            for (const one of sent) into.enqueue(new TextEncoder().encode(`data: ${one}\\n\\n`));
            if (over) into.close();
        }""",
        [sent, over],
    )


def sent_bodies(page: Page) -> list[str]:
    """Bodies of the page's requests from now on, as they are made."""
    bodies: list[str] = []

    def note(request: Any) -> None:
        if request.post_data:
            bodies.append(request.post_data)

    page.on("request", note)
    return bodies
