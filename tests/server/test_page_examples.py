"""The first screen's questions: the bundled edge alone is wrong, the pair right."""

from pathlib import Path

import msgspec
from playwright.sync_api import Page, expect

from edgewise import Pair
from tests.server.page_asking import ask, ask_example, choose

PAGE = Path(__file__).parents[2] / "src" / "edgewise" / "server" / "page"
EXAMPLES: list[dict[str, str]] = msgspec.json.decode((PAGE / "examples.json").read_bytes())


def wrapped(example: dict[str, str]) -> str:
    return f"Question: {example['question']} Answer and Reasoning:"


def test_the_edge_alone_is_wrong_on_examples() -> None:
    with Pair(cloud="none") as edge:
        for example in EXAMPLES:
            assert edge.ask(wrapped(example)).text.endswith(f"the answer is {example['edge']}.")


def test_the_pair_is_right_on_examples() -> None:
    """Each alone, and one after the other: an answer may spend what the next one needs."""
    with Pair() as pair:
        for example in EXAMPLES:
            assert pair.ask(wrapped(example)).text.endswith(f"the answer is {example['right']}.")
        for example in EXAMPLES:
            pair.forget()
            assert pair.ask(wrapped(example)).text.endswith(f"the answer is {example['right']}.")


def test_an_example_is_shown_as_one_would_ask_it(here: Page) -> None:
    for example in EXAMPLES:
        ask_example(here, example["title"])
        expect(here.locator(".question")).to_have_text(example["question"])
        expect(here.locator(".text")).to_contain_text(f"the answer is {example['right']}.")
        said = here.locator(".caption")
        expect(said).to_contain_text(f": {example['edge']}, wrong.")
        here.get_by_role("button", name="New chat").click()
    # An edited one is asked in the same wording.
    choose(here, "Side by side")
    ask_example(here)
    expect(here.locator(".right")).to_have_count(1)
    expect(here.locator(".wrong")).to_have_count(2)
    here.get_by_role("button", name="Edit").click()
    expect(here.get_by_label("Question", exact=True)).to_have_value(EXAMPLES[0]["question"])


def test_the_bundled_pair_says_that_it_is_a_toy(here: Page) -> None:
    expect(here.locator("#toy code")).to_contain_text("smollm2")
    ask(here, "Why is the sky blue?")
    expect(here.locator(".caption .note")).to_contain_text("smollm2")


def test_another_pair_has_examples_that_promise_nothing(page: Page) -> None:
    buttons = page.locator("#examples button")
    expect(buttons).to_have_count(4)
    expect(page.locator("#first")).not_to_contain_text("wrong")
    expect(page.locator("#toy")).to_be_hidden()
