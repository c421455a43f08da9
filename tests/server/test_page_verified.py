"""What the page shows of an answer that the cloud verified: drafts, corrections, ratios, sums."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from edgewise.testing.link import Link
from tests.server.page_asking import (
    END,
    ask,
    ask_example,
    begin,
    cloud_token,
    done,
    hold,
    reply,
    say,
    token,
    usage,
)

SIZES = {"wide": (1280, 760), "phone": (390, 800)}
STANDS = {"reason": "verified", "threshold": 0.3}
WORDS = re.findall(r" \w+", " Ada Lovelace wrote the first programs for a machine never built")


def verified(index: int, text: str, ratio: float = 1.0) -> dict[str, Any]:
    return token(index, text, **STANDS, ratio=ratio)


def corrected(index: int, text: str, draft: str, ratio: float) -> dict[str, Any]:
    made = cloud_token(index, text, draft)
    made["edgewise"]["token"] |= {"reason": "corrected", "threshold": 0.3, "ratio": ratio}
    return made


def pending(index: int, text: str) -> dict[str, Any]:
    return {"edgewise": {"pending": {"index": index, "text": text}}}


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
    reply(page, [*said, END, usage(cloud_calls=2)])
    ask(page, "tin")
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


CORRECTED = [corrected(place, f"{place}", "x", 0.1) for place in range(5)]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ([verified(0, "Tin"), verified(1, ".")], ("none of 2",)),
        (
            [verified(0, "Tin"), corrected(1, " a", " no", 0.1), verified(2, " b", 0.344)],
            ("1 of 3", "tokens: no → a", "“b”, 0.34 of"),
        ),
        (CORRECTED, ("5 of 5", "x → 2 and 2 more.")),
        ([verified(0, "Tin"), token(1, "."), token(2, "!", reason="timeout")], ("no answer",)),
    ],
)
def test_a_sentence_sums_up(page: Page, said: Sequence[Any], told: Sequence[str]) -> None:
    reply(page, [*said, END, usage()])
    ask(page, "tin")
    for part in ("Verified by", *told):
        expect(page.locator(".caption")).to_contain_text(part)


def test_less_than_allowed_is_not_put_on_a_router(page: Page) -> None:
    page.get_by_label("Cloud share").fill("20")
    said = [corrected(0, "Tin", "Zinc", 0.1), *(verified(place, " a") for place in range(1, 40))]
    reply(page, [*said, END, usage(cloud_calls=3, cloud_share=0.025)])
    ask(page, "tin")
    page.locator(".meters summary").click()
    expect(page.locator(".meters")).to_contain_text("Less than allowed")
    expect(page.locator(".meters")).not_to_contain_text("router")


@pytest.mark.parametrize("size", SIZES)
def test_blocks_of_drafts_are_dimmed_until_they_are_verified(
    page: Page, size: str, tmp_path: Path
) -> None:
    width, height = SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    kept = Path(os.environ.get("SCREENSHOTS", tmp_path))

    def look(what: str) -> None:
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        page.screenshot(path=kept / f"page-verified-{what}-{size}.png")

    words = [word for _ in range(7) for word in WORDS]
    hold(page)
    begin(page, "Who wrote the first programs?")
    say(page, *(verified(place, word) for place, word in enumerate(words[:20])))
    say(page, *(pending(place, word) for place, word in enumerate(words[20:68], 20)))
    drafts, text = page.locator(".text .pending"), page.locator(".text")
    expect(drafts).to_have_count(48)
    colours = [
        one.evaluate("node => getComputedStyle(node).color")
        for one in (drafts.first, text.locator("[data-number]").first)
    ]
    assert colours[0] != colours[1]
    before = text.bounding_box()
    look("drafts")
    # Those that stand are drawn where they were.
    say(page, *(verified(place, word) for place, word in enumerate(words[20:40], 20)))
    expect(drafts).to_have_count(28)
    assert text.bounding_box() == before
    say(
        page, corrected(40, " other", words[40], 0.02), {"edgewise": {"rolled_back": {"index": 40}}}
    )
    expect(drafts).to_have_count(0)
    look("rolled-back")
    say(page, *(pending(place, word) for place, word in enumerate(words[41:70], 41)))
    expect(drafts).to_have_count(29)
    look("again")
    say(page, *(verified(place, word, 0.34) for place, word in enumerate(words[41:70], 41)))
    say(page, END, usage(cloud_calls=4, cloud_share=0.02), over=True)
    done(page)
    expect(text.locator("[data-number]")).to_have_count(70)
    page.locator(".text .changed").click()
    page.locator(".meters summary").click()
    look("end")


def test_a_real_pairs_answer_is_verified_token_by_token(here: Page) -> None:
    """Both models in the server's process, with its default settings."""
    ask_example(here)
    expect(here.locator(".caption")).to_contain_text("Verified by")
    expect(here.locator(".text .changed")).not_to_have_count(0)
    here.locator(".text [data-reason=verified]").first.hover()
    expect(here.locator("#details")).to_contain_text(re.compile("too|of its likeliest"))
    here.locator(".text .changed").first.hover()
    expect(here.locator("#details")).to_contain_text("ratio")
    expect(here.locator("#details")).to_contain_text("of the cloud's")


def test_where_no_share_holds_the_dial_says_so(page: Page, linked: tuple[str, Link]) -> None:
    pair = page.request.get(f"{linked[0]}/health").json()
    exact = {**pair, "cloud_share": None, "threshold": None, "verify": "exact"}
    page.route("**/health", lambda route: route.fulfill(json=exact))
    page.reload()
    expect(page.locator("#share-value")).to_have_text("exact")
