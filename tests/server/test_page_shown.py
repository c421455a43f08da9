"""What the page shows: states, sizes, colours, axe, examples that win, markdown as nodes."""

import os
import re
import time
from itertools import product
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from edgewise import Pair
from edgewise.testing.link import Link
from tests.server.conftest import opened
from tests.server.page_asking import (
    END,
    QUESTION,
    SIZES,
    answered,
    ask,
    ask_example,
    begin,
    candidate,
    choose,
    cloud_token,
    hold,
    say,
    token,
)
from tests.server.serving import serving

axe = pytest.importorskip("axe_playwright_python.sync_playwright")

LONG = "# Tin\n\n```\n" + "metal " * 60 + "\n```\n\n" + "| tin " * 40 + "|\n" + "|---" * 40 + "|\n"


def test_the_first_screen_says_what_this_is_and_promises_nothing(page: Page) -> None:
    """Examples of another pair than the bundled one have no answers that are known."""
    expect(page.locator("#first h2")).to_be_visible()
    expect(page.get_by_label("Message")).to_be_focused()
    expect(page.locator("#models")).to_contain_text("(0.4 M) + ")
    expect(page.locator("#examples button")).to_have_count(4)
    expect(page.locator("#first")).not_to_contain_text("wrong")
    expect(page.locator("#toy")).to_be_hidden()


def test_the_header_never_wraps(page: Page, linked: tuple[str, Link]) -> None:
    pair = page.request.get(f"{linked[0]}/health").json()
    page.route("**/health", lambda route: route.fulfill(json=pair))
    heights: dict[str, set[float]] = {size: set() for size in SIZES}
    for name in ("tin", "a-model-of-many-words-" * 20):
        pair["edge"] = name
        page.reload()
        expect(page.locator("#models")).to_contain_text(name[:5])
        for size, (width, height) in SIZES.items():
            page.set_viewport_size({"width": width, "height": height})
            box = page.locator("header").bounding_box()
            assert box
            heights[size].add(box["height"])
    assert all(len(found) == 1 for found in heights.values())


def shows(page: Page, what: str) -> None:
    """Bring the page to a state in which much is to be seen."""
    if what == "side by side":
        choose(page, "Side by side")
        ask_example(page)
    if what == "formatted":
        answered(page, [token(0, LONG), END], QUESTION)
        expect(page.locator(".text table")).to_be_visible()
    if what == "local":
        page.get_by_role("button", name=re.compile("^Keep")).click()
        ask(page, "In private: what is pennon?")
    if what == "writing":
        hold(page)
        begin(page, "tin")
        say(page, {"edgewise": {"prompt_token_ids": [1]}}, token(0, "Tin"))
        expect(page.get_by_role("button", name="Disconnect")).to_be_enabled()
    if what == "panels":
        answered(page, [token(0, "It makes "), cloud_token(1, "3", "4"), END], QUESTION)
        page.locator(".meters summary").click()
        page.locator("#sent summary").click()
        page.locator(".text .changed").click()
        expect(page.locator("#details.pinned")).to_be_visible()
    if what == "settings":
        page.get_by_role("button", name="Settings").click()
        expect(page.get_by_label("Temperature")).to_be_visible()


@pytest.mark.parametrize(
    "what", ["first", "side by side", "formatted", "local", "writing", "panels", "settings"]
)
def test_everything_fits_and_axe_finds_nothing(here: Page, what: str) -> None:
    shows(here, what)
    for size, scheme in product(SIZES, ("light", "dark")):
        here.set_viewport_size({"width": SIZES[size][0], "height": SIZES[size][1]})
        here.emulate_media(color_scheme=scheme)
        assert here.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        expect(here.get_by_label("Message")).to_be_in_viewport()
        if folder := os.environ.get("SCREENSHOTS"):
            here.screenshot(path=f"{folder}/page-{what.replace(' ', '-')}-{size}-{scheme}.png")
        if (size, scheme) == ("phone", "light"):
            continue  # its colours are those of the wide one
        found = axe.Axe().run(here)
        assert found.generate_report() == "Found 0 accessibility violations:\n"


PAGE = Path(__file__).parents[2] / "src" / "edgewise" / "server" / "page"
EXAMPLES: list[dict[str, str]] = msgspec.json.decode((PAGE / "examples.json").read_bytes())


def wrapped(example: dict[str, str]) -> str:
    return f"Question: {example['question']} Answer and Reasoning:"


def test_the_edge_alone_is_wrong_on_examples_and_the_pair_is_right() -> None:
    with Pair(cloud="none") as edge, Pair() as pair:
        for example in EXAMPLES:
            said = edge.ask(wrapped(example)).text, pair.ask(wrapped(example)).text
            assert said[0].endswith(f"the answer is {example['edge']}.")
            assert said[1].endswith(f"the answer is {example['right']}.")
            pair.forget()


def test_an_example_is_shown_as_one_would_ask_it(
    shared: BrowserContext, problems: list[str]
) -> None:
    """By a server of its own: corrections that others had would be missing here."""
    with serving("--threads", "1") as url, opened(shared, url, problems) as here:
        for example in EXAMPLES:
            ask_example(here, example["title"])
            expect(here.locator(".question")).to_have_text(example["question"])
            expect(here.locator(".text")).to_contain_text(f"the answer is {example['right']}.")
            expect(here.locator(".caption")).to_contain_text(f": {example['edge']}, wrong.")
            here.get_by_role("button", name="New chat").click()
        # An edited one is asked in the same wording.
        choose(here, "Side by side")
        ask_example(here)
        expect(here.locator(".right")).to_have_count(1)
        expect(here.locator(".wrong")).to_have_count(2)
        here.get_by_role("button", name="Edit").click()
        field = here.get_by_label("Question", exact=True)
        expect(field).to_have_value(EXAMPLES[0]["question"])


def test_the_bundled_pair_says_that_it_is_a_toy(here: Page) -> None:
    expect(here.locator("#toy code")).to_contain_text("smollm2")
    ask(here, "Why is the sky blue?")
    expect(here.locator(".caption .note")).to_contain_text("smollm2")


MARKDOWN = """# Tin

A **metal**, with `Sn`:

| a | b |
|---|---|
| 1 | 2 |

<img src=x onerror="document.title='owned'"> <script>document.title='owned'</script>
![picture](https://example.org/x.png) [good](https://example.org/a) [bad](javascript:alert(1))
[worse](data:text/html,x) <a href="javascript:alert(1)" onclick="alert(1)">raw</a>
"""

DRAWN = """async (source) => {
    const { markdown } = await import("/markdown.js");
    const holder = document.createElement("div");
    holder.append(...markdown(source, (start, end) => [source.slice(start, end)]));
    return holder.innerHTML.replaceAll(' rel="noopener noreferrer nofollow" target="_blank"', "");
}"""


INJECTED = "<img src=x onerror=\"document.title='owned'\">"


def test_an_answer_is_formatted_and_nothing_said_runs(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    pieces = [*(MARKDOWN[at : at + 3] for at in range(0, len(MARKDOWN), 3)), INJECTED]
    about = {"edge": [candidate(INJECTED)]}
    answered(
        page, [*(token(place, piece, **about) for place, piece in enumerate(pieces)), END], INJECTED
    )
    expect(page.locator(".question")).to_have_text(INJECTED)
    expect(page.locator(".text")).to_contain_text(INJECTED)
    page.locator(".text .token").last.hover()
    expect(page.locator("#details")).to_contain_text(INJECTED)
    assert page.locator("main img, #details img").count() == 0
    text = page.locator(".text")
    for kept in ("h4", "strong", "code", "td >> nth=1"):
        expect(text.locator(kept)).to_be_visible()
    expect(text).to_contain_text("<script>")
    expect(text).to_contain_text("picture")
    assert text.locator("img, script, [onclick], [onerror], [style]").count() == 0
    links = text.locator("a")
    expect(links).to_have_count(1)
    expect(links).to_have_attribute("href", "https://example.org/a")
    assert "noopener" in (links.get_attribute("rel") or "")
    assert page.title() == "Edgewise"
    assert not any("example.org" in url for url in asked)
    # Tokens stay tokens: a piece is drawn in each node that shows some of it.
    assert text.locator("strong .token").first.get_attribute("data-number") is not None
    page.get_by_role("button", name="Settings").click()
    page.get_by_label("Format answers").uncheck()
    expect(text).to_contain_text("**metal**")


TABLE = "|a|b|\n|-|:-:|\n|1|\\||\nc"
DRAWINGS = {
    "a *b* **c *d* e**": "<p>a <em>b</em> <strong>c <em>d</em> e</strong></p>",
    "_f_ ~~g~~": "<p><em>f</em> <del>g</del></p>",
    "2*3*4 snake_case_name a * b *": "<p>2*3*4 snake_case_name a * b *</p>",
    "**open and `open": "<p>**open and `open</p>",
    r"\*no\* `a*b*` ``c`d``": "<p>*no* <code>a*b*</code> <code>c`d</code></p>",
    "one\ntwo\n\nthree": "<p>one\ntwo</p><p>three</p>",
    "see https://x.y/a_b.": '<p>see <a href="https://x.y/a_b">https://x.y/a_b</a>.</p>',
    "[**b**](https://x.y/(z))": '<p><a href="https://x.y/(z)"><strong>b</strong></a></p>',
    '[a]( https://x.y  "t" )': '<p><a href="https://x.y">a</a></p>',
    "[a](JavaScript:b) ![p](x.png)": "<p>a p</p>",
    "- a\n- b\n  - c": "<ul><li>a</li><li><p>b</p><ul><li>c</li></ul></li></ul>",
    "- a\n\n1. d\n2. e": '<ul><li>a</li></ul><ol start="1"><li>d</li><li>e</li></ol>',
    "3. c\n\n4. d": '<ol start="3"><li>c</li><li>d</li></ol>',
    "> a\n> - b": "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>",
    "```py\nx = *1*\n\n```\nz": '<pre tabindex="0"><code>x = *1*\n\n</code></pre><p>z</p>',
    "```print(1)```\n*z*": "<p><code>print(1)</code>\n<em>z</em></p>",
    "a\n``` b ``` c\nd": "<p>a\n<code> b </code> c\nd</p>",
    "~~~a`b\nx\n~~~~ \nz": '<pre tabindex="0"><code>x\n</code></pre><p>z</p>',
    "````\nx\n```\n````y\n  `````\nz": (
        '<pre tabindex="0"><code>x\n```\n````y\n</code></pre><p>z</p>'
    ),
    "```\nopen": '<pre tabindex="0"><code>open</code></pre>',
    "# a #b\n---\n####### c": "<h4>a #b</h4><hr><p>####### c</p>",
    TABLE: '<div class="scroll" tabindex="0"><table><thead><tr><th>a</th><th>b</th></tr></thead>'
    "<tbody><tr><td>1</td><td>|</td></tr></tbody></table></div><p>c</p>",
    "": "",
    **{
        formula: f"<p>{formula}</p>"
        for formula in (
            r"\[ 72 - 10_a = \text{b}_{1} \boxed{62} \]",
            "\\[\n72\n- 10\n= *62*\n\\].",
            "$$\nx_{1} * y_{2} * z\n$$",
            r"so \(a_{1} * b_{2} * c\) and $\text{a}_{1} + \text{b}_{2}$ and $$*d*$$",
            r"\frac{1}{2} \{a\} 5\% 3 \, \text{cm}",
            "\\[ *not\nclosed* *yet",
            r"\( not closed",
        )
    },
    r"\[ a \] is *b*": r"<p>\[ a \] is <em>b</em></p>",
    "so\n\\[\n_a_\n\\]\n_b_": "<p>so</p><p>\\[\n_a_\n\\]</p><p><em>b</em></p>",
    "- a\n  \\[\n  + b\n  \\]": "<ul><li><p>a</p><p>\\[\n+ b\n\\]</p></li></ul>",
    "*$5* to $6, *$7*": "<p><em>$5</em> to $6, <em>$7</em></p>",
    r"\$5 and $x": "<p>$5 and $x</p>",
}
HARD = (
    *("\\(", "\\[", "\\[ a\n", "$", "$a", "$$", "$\\$", "$$a\n", "\\(a\n"),
    *("*a ", "**a ", "`", "[", "[a](", "> ", "- ", "  - a\n", "|", "_a", "\\", "https://", "~~ "),
    "a|b\n-|-\n",
    "[a](" + " " * 100_000 + "x",
    "a|b\n-|-" + " " * 100_000 + "x",
)


def test_markdown_as_nodes(page: Page) -> None:
    assert {source: page.evaluate(DRAWN, source) for source in DRAWINGS} == DRAWINGS


def test_text_that_is_made_to_be_hard_is_drawn_at_once(page: Page) -> None:
    """All of it stays: nothing but marks is lost."""
    for piece in HARD:
        source = piece * (40_000 // len(piece))
        began = time.monotonic()
        assert page.evaluate(DRAWN, source) is not None
        assert time.monotonic() - began < 60, piece
