"""Formatted answers: markdown as nodes, of which each knows its tokens."""

import time

import pytest
from playwright.sync_api import Page, expect

from tests.server.page_asking import END, ask, reply, token

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


def test_an_answer_is_formatted_and_nothing_in_it_runs(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    pieces = [MARKDOWN[at : at + 3] for at in range(0, len(MARKDOWN), 3)]
    reply(page, [*(token(place, piece) for place, piece in enumerate(pieces)), END])
    ask(page, "tin")
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
    "[a](JavaScript:b) ![p](x.png)": "<p>a p</p>",
    "- a\n- b\n  - c": "<ul><li>a</li><li><p>b</p><ul><li>c</li></ul></li></ul>",
    "- a\n\n1. d\n2. e": '<ul><li>a</li></ul><ol start="1"><li>d</li><li>e</li></ol>',
    "3. c\n\n4. d": '<ol start="3"><li>c</li><li>d</li></ol>',
    "> a\n> - b": "<blockquote><p>a</p><ul><li>b</li></ul></blockquote>",
    "```py\nx = *1*\n\n```\nz": '<pre tabindex="0"><code>x = *1*\n\n</code></pre><p>z</p>',
    "```\nopen": '<pre tabindex="0"><code>open</code></pre>',
    "# a #b\n---\n####### c": "<h4>a #b</h4><hr><p>####### c</p>",
    TABLE: '<div class="scroll" tabindex="0"><table><thead><tr><th>a</th><th>b</th></tr></thead>'
    "<tbody><tr><td>1</td><td>|</td></tr></tbody></table></div><p>c</p>",
    "": "",
}
HARD = (
    *("*a ", "**a ", "`", "[", "[a](", "> ", "- ", "  - a\n", "|", "_a", "\\", "https://", "~~ "),
    "a|b\n-|-\n",
)


@pytest.mark.parametrize("source", DRAWINGS)
def test_markdown_as_nodes(page: Page, source: str) -> None:
    assert page.evaluate(DRAWN, source) == DRAWINGS[source]


def test_text_that_is_made_to_be_hard_is_drawn_at_once(page: Page) -> None:
    """All of it stays: nothing but marks is lost."""
    for piece in HARD:
        source = piece * (40_000 // len(piece))
        began = time.monotonic()
        assert page.evaluate(DRAWN, source) is not None
        assert time.monotonic() - began < 5, piece
