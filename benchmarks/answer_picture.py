"""The README's picture: `python -m benchmarks.answer_picture` writes docs/pictures/answer.svg.

The bundled edge model answers a question alone, and with its cloud: token by token, in slow motion.
Readers who want no motion, and programs that know none, see the end.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from textwrap import wrap

from edgewise import Pair, Token

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "answer.svg"
QUESTION = (
    "There are 55 coins in a box that belongs to Hugo. A neighbour borrows 1 from Hugo. Ines has "
    "22 coins. Ines wins 12 in a game. What is the number of coins that Ines has at the end? Say "
    "what is known first."
)
COLUMNS, CHARACTER, LEFT = 86, 9.0, 28
EDGE, CLOUD, SECONDS = 0.07, 1.3, 12.0
"""Seconds of a token by its source, and of the whole."""

STYLE = """
:root{--back:#fff;--line:#d5d9e0;--text:#1a1c20;--faint:#5b606a;--cloud:#b3190c;--glow:#fde4e0}
@media (prefers-color-scheme:dark){:root{--back:#161b22;--line:#3b424d;--text:#e9e9e6;
--faint:#a2a8b3;--cloud:#ff9a8c;--glow:#532019}}
text{font:15px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:var(--text)}
.label,.faint,.guess,.struck{fill:var(--faint)}.guess{font-style:italic;opacity:0}
.struck{font-size:12px;text-decoration:line-through}.label,.cloud,.bold{font-weight:700}
.cloud{fill:var(--cloud)}.card{fill:var(--back);stroke:var(--line)}.glow{fill:var(--glow)}
@media (prefers-reduced-motion:reduce){*{animation:none!important}}
"""


class Picture:
    """An SVG, as `body` and the `style` of what moves."""

    def __init__(self) -> None:
        self.body: list[str] = []
        self.style = STYLE

    def text(self, said: str, x: float, y: float, kind: str, at: float, until: float = 0) -> None:
        """Show text from `at` on, or to `until`; letters keep to a grid, whatever the font."""
        bare = said.strip()
        x += CHARACTER * (len(said) - len(said.lstrip()))
        length = f'textLength="{CHARACTER * len(bare):g}" lengthAdjust="spacingAndGlyphs"'
        shown = f'class="{kind}{self._moment(at, until)}"'
        self.body.append(f'<text x="{x:g}" y="{y:g}" {length} {shown}>{escape(bare)}</text>')

    def glow(self, x: float, y: float, at: float) -> None:
        """Behind a character."""
        place = f'x="{x - 2:g}" y="{y - 16:g}" width="{CHARACTER + 4:g}" height="22" rx="4"'
        self.body.append(f'<rect {place} class="glow{self._moment(at)}"/>')

    def _moment(self, at: float, until: float = 0) -> str:
        if not at:
            return ""
        name = f"a{len(self.body)}"
        gone = f"{until / SECONDS:.2%},to{{opacity:0}}" if until else ""
        frames = f"from{{opacity:0}}{at / SECONDS:.2%}{{opacity:1}}{gone}"
        animation = f"animation:{name} {SECONDS:g}s step-end infinite"
        self.style += f"@keyframes {name}{{{frames}}}.{name}{{{animation}}}\n"
        return f" {name}"


def places(tokens: Sequence[Token], top: float) -> list[tuple[float, float, float]]:
    """Of each token: x, y, and when it comes. Lines break before words."""
    lines = wrap("".join(token.text for token in tokens), COLUMNS)
    column, line, at = 0, 0, 0.6
    found: list[tuple[float, float, float]] = []
    for token in tokens:
        if column >= len(lines[line]) and line + 1 < len(lines):
            column, line = -1, line + 1  # the space before the word is not drawn
        at += CLOUD if token.source == "cloud" else EDGE
        found.append((LEFT + CHARACTER * column, top + 34 * line, at))
        column += len(token.text)
    return found


def picture() -> str:
    """The SVG of both answers."""
    prompt = f"Question: {QUESTION} Answer and Reasoning:"
    with Pair() as pair, Pair(cloud="none") as alone:
        both, edge = pair.ask(prompt).tokens, alone.ask(prompt).tokens
    # As far as this token the answers are alike.
    changed = next(place for place, one in enumerate(both) if one.id != edge[place].id)
    drawn = Picture()
    for number, line in enumerate(wrap(QUESTION, COLUMNS)):
        drawn.text(line, LEFT, 34 + 22 * number, "faint", 0)
    for name, answer, top in (("edge alone", edge, 158), ("edge and cloud", both, 266)):
        drawn.text(name, LEFT, top - 30, "label", 0)
        for place, (token, (x, y, at)) in enumerate(zip(answer, places(answer, top), strict=True)):
            cloud = answer is both and place == changed
            if cloud:
                drawn.glow(x, y, at)
                drawn.text(edge[place].text, x, y - 18, "struck", at)
            drawn.text(token.text, x, y, "cloud" if cloud else "", at)
    moments = places(both, 266)
    # While the cloud reads the edge goes on as it did alone.
    for place, (x, y, _) in list(enumerate(places(edge, 266)))[changed : changed + 7]:
        at = moments[changed - 1][2] + EDGE * (place - changed + 1)
        drawn.text(edge[place].text, x, y, "guess", at, moments[changed][2])
    change = f"{edge[changed].text} → {both[changed].text}"
    told = f"The cloud changed 1 of {len(both)} tokens: {change}. "
    drawn.text(told, LEFT, 344, "bold", moments[-1][2] + 0.4)
    wrong = "Without it: 44, wrong."
    drawn.text(wrong, LEFT + CHARACTER * len(told), 344, "cloud", moments[-1][2] + 1.2)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 830 366"><title>{told}</title>'
    card = '<rect class="card" x=".5" y=".5" width="829" height="365" rx="12"/>'
    return "\n".join([head, f"<style>{drawn.style}</style>", card, *drawn.body, "</svg>\n"])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
