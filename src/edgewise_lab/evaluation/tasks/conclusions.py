"""Find what a reply concludes if its prompt asks to end with "Answer: X" (the chat form)."""

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction

from edgewise_lab.evaluation.tasks.base import LETTERS

_LINE, _LONGEST = "Answer:", 300
"""How an exact last line begins; how many characters of a conclusion are read at most."""

_BOX = re.compile(r"\\(?:boxed|fbox|text\w*|math\w*)\s*\{([^{}]*)\}")
_MARKUP = re.compile(
    r"\\[()\[\]]|\\displaystyle|[`\"“”]|(?<!\w)\*+|\*+(?!\w)|(?<!\w)__|__(?!\w)|^#+ |\$(?!\d)",
    re.MULTILINE,
)
_FRACTION = re.compile(r"\\[dt]?frac\s*\{\s*(\d+)\s*\}\s*\{\s*(\d+)\s*\}")
_NARROW = re.compile(r"\\[,!;: ]|(?<=\d)[\u00a0\u2009\u202f](?=\d{3})|\\(?=[$%])")

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d{1,300})"
_NUMBER = re.compile(
    rf"(?<!\w)(?P<sign>(?<!\))[-−])?[$€£]?(?P<minus>[-−])?(?:(?P<whole>{_DIGITS}) +(?=\d+/\d))?"
    rf"(?P<number>{_DIGITS}(?:\.\d{{1,300}})?|(?<![\w.])\.\d{{1,300}})"
    r"(?: ?/ ?(?P<under>\d{1,9})(?!\d| ?/|\.\d))?"
)
# "The best answer to this would be", "Answer:", "the correct choice is".
_CUE = re.compile(
    r"\b(?:answer(?:\s+(?!(?:is|be|was)\b)[a-z]+){0,6}|"
    r"(?:correct|right|best|final|likely|suitable|appropriate)\s+(?:option|choice))"
    r"(?:\s+(?:is|be|was)\b\s*:?|\s*[:=]|\s+[-–—](?=\s))",
    re.IGNORECASE,
)
# A capital "A" may be a choice's letter.
_FILLER = re.compile(
    r"(?:(?:(?i:most likely|likely|probably|therefore|thus|then|clearly|indeed|simply|option|"
    r"choice|letter|the)|an?)\s+)+"
)
_RIGHT = re.compile(
    r"\s+(?:is|seems|would be)\s+(?:(?:most )?[a-z]+ly\s+)?"
    r"(?:correct|right|(?:the|our|my)\s+(?:(?!not\b)[\w-]+\s+){0,3}"
    r"(?:answer|choice|option|correct|right|best|one))\b"
)
_MARKED = r"(?:\*\*|__|\\boxed\s*\{)([^*\n{}]+)(?:\*\*|__|\})"


def concluded(text: str) -> str | None:
    """Return what follows "Answer:" if the last line, and no other, begins with it; else None."""
    lines = [line.strip() for line in _unmarked(text).splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(_LINE)]
    if len(said) != 1 or said != lines[-1:]:
        return None
    return said[0].removeprefix(_LINE).strip().removesuffix(".").rstrip()


def says_number(text: str) -> Fraction | None:
    """Return NUMBER of a last line "Answer: NUMBER" (5 for "5%" and "$5"); None without one."""
    said = concluded(_readable(text))
    found = _NUMBER.fullmatch(said.removesuffix("%").rstrip()) if said else None
    return _value(found) if found else None


def number_in(text: str) -> Fraction | None:
    r"""Return the last number after "answer" or "####" or in \boxed{}, else the last, or None."""
    text = _readable(text)
    marks = r"\\boxed\s*\{([^}\n]*)", r"####[ \t]*(\S*\d\S*)[ \t]*(?=\n|$)"
    marked = [(f.start(), f[1]) for mark in marks for f in re.finditer(mark, text)]
    # Each mark becomes as many spaces, so that positions stay.
    plain = _MARKUP.sub(lambda mark: " " * len(mark[0]), text)
    cued = [(f.start(), _rest(plain, f.end())) for f in _CUE.finditer(plain)]
    cued += [(f.start(), f[1]) for f in re.finditer(r"(?i)\banswer\W{0,8}?((?=[-$\d]).*)", plain)]
    for _, said in sorted(marked + cued, reverse=True):
        if found := _NUMBER.search(said.rpartition("=")[2]):  # the result of a calculation
            return _value(found)
    every = list(_NUMBER.finditer(plain))
    return _value(every[-1]) if every else None


def number_from(answer: str) -> Fraction | None:
    """Return the first number in `answer`, a question's right answer; None without one."""
    found = _NUMBER.search(_readable(answer))
    return _value(found) if found else None


def says_choice(text: str, choice: str, letter: str | None) -> bool:
    """Whether the last line is "Answer:" and `letter`, alone or with `choice` (None: `choice`)."""
    own = rf"(?i:{re.escape(_named_as(choice))})"
    forms = own
    if letter:
        by_letter = rf"\(?{letter}\)?(?:(?:[.:,)]\s*|\s+(?:[-–—]\s*)?)\(?{own}\)?)?"
        forms = rf"{by_letter}|{own}\s*\({letter}\)"
    said = concluded(text)
    return said is not None and re.fullmatch(forms, said) is not None


def choice_in(text: str, choices: tuple[str, ...]) -> str | None:
    """Return which of `choices` the reply's last conclusion names; None if none or several.

    A conclusion follows "the answer is" or "Answer:", or precedes "is correct". Without one, a line
    that is only a choice counts, or else the last bold, boxed or bracketed choice inside a line.
    """
    names = [_named_as(choice) for choice in choices]
    plain = _unmarked(text)
    found = [*_cued(plain, names), *_called_right(plain, names)]
    found = found or [*_alone(plain, names)] or [*_marked(text, names)]
    last = max(found, key=lambda one: one[0])[1] if found else set[str]()
    return choices[names.index(last.pop())] if len(last) == 1 else None


_Place = tuple[int, set[str]]
"""A position in a text, and the choices that are named there."""


def _cued(text: str, choices: Sequence[str]) -> Iterator[_Place]:
    for cue in _CUE.finditer(text):
        rest = _rest(text, cue.end())
        filler = _FILLER.match(rest)
        named = _named(rest, choices) or _named(rest[filler.end() :] if filler else "", choices)
        if named:
            yield cue.start(), named


def _called_right(text: str, choices: Sequence[str]) -> Iterator[_Place]:
    for letter in re.finditer(rf"\(?\b[{LETTERS[: len(choices)].upper()}]\b", text):
        one = _first(text[letter.start() :].partition("\n")[0], choices)
        if one and _RIGHT.match(one[1]):
            yield letter.start(), one[0]


def _alone(text: str, choices: Sequence[str]) -> Iterator[_Place]:
    """Yield a choice that is a whole line (not a list); a single line may name it anywhere."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    each = [_exactly(line, choices) for line in lines]
    if len({name for names in each for name in names}) == 1:
        yield 0, next(names for names in each if names)
    elif len(lines) == 1:
        held = _named(lines[0], choices) or {
            one for one in choices if re.search(rf"(?i)(?<!\w){re.escape(one)}(?!\w)", lines[0])
        }
        if longest := {one for one in held if not any(one in more for more in held - {one})}:
            yield 0, longest
    elif lines and each[-1] and not each[-2]:
        yield 0, each[-1]


def _marked(text: str, choices: Sequence[str]) -> Iterator[_Place]:
    """Yield bold, boxed and bracketed choices, but not labels at the beginning of a line."""
    for mark in re.finditer(rf"{_MARKED}|\(([a-zA-Z])\)", text):
        named = _exactly(mark[1] or f"({mark[2]})", choices)
        if named and re.search(r"\w", text[: mark.start()].rpartition("\n")[2]):
            yield mark.start(), named


def _exactly(said: str, choices: Sequence[str]) -> set[str]:
    """Return the choices that `said` names; none if it also says something else."""
    one = _first(said.lstrip("-•# \t"), choices)
    return one[0] if one and not one[1].strip(" .!:)") else set()


def _named(rest: str, choices: Sequence[str]) -> set[str]:
    """Return the choices at the beginning of `rest`, several if joined by "or" or "and"."""
    named: set[str] = set()
    while one := _first(rest, choices):
        named |= one[0]
        more = re.match(r"\s*(?:,|/|&|\bor\b|\band\b)\s*", one[1])
        if more is None:
            break
        rest = one[1][more.end() :]
    return named


def _first(rest: str, choices: Sequence[str]) -> tuple[set[str], str] | None:
    """Return what `rest` begins with (a choice; if letter and text differ, two), and the rest."""
    letters = LETTERS[: len(choices)]
    label = re.match(rf"[(\[{{'\"]?([{letters}])\b(?:[)\]}}'\"](?!\w))?", rest, re.IGNORECASE)
    text = _text(rest, choices)
    if text and (label is None or len(text[0]) > 1):
        after = re.match(rf"\s*\(([{letters}])\)", text[1], re.IGNORECASE)
        if after is None:
            return {text[0]}, text[1]
        return {text[0], _by(after[1], choices)}, text[1][after.end() :]
    if label is None:
        return None
    parted = re.compile(r"\s*[.:,)–—-]*\s*\(?").match(rest, label.end())
    assert parted is not None
    text = _text(rest[parted.end() :], choices)
    named = _by(label[1], choices)
    if not _is_label(label, rest):
        # An article before a choice, or its letter.
        return ({text[0]}, text[1]) if text and label[0] in ("a", "A") else None
    if text and (text[0] == named or re.match(r"\s*\)?\s*(?:$|[.,;:!])", text[1])):
        return {named, text[0]}, text[1]
    return {named}, rest[label.end() :]


def _is_label(label: "re.Match[str]", rest: str) -> bool:
    """Whether a letter stands for a choice: "A", "(a)", "A)" or "a.", not the word in "a job"."""
    after = rest[label.end() :]
    if label[0][0] == "(" or label[0][-1] in ")]}'\"":
        return True
    if label[1].islower():
        return re.match(r"\s*(?:$|[.:,;)])", after) is not None
    word = re.match(r"\s+([a-z]\w*)", after)
    as_such = ("is", "it", "because", "since", "as", "or", "and", "seems", "would")
    return word is None or label[1] not in "AI" or word[1] in as_such


def _text(rest: str, choices: Sequence[str]) -> tuple[str, str] | None:
    """Return the longest choice that `rest` begins with, and what follows it."""
    for choice in sorted(choices, key=len, reverse=True):
        if found := re.match(rf"(?i){re.escape(choice)}(?!\w)", rest):
            return choice, rest[found.end() :]
    return None


def _by(letter: str, choices: Sequence[str]) -> str:
    return choices[LETTERS.index(letter.lower())]


def _named_as(choice: str) -> str:
    return _unmarked(choice).strip().rstrip(".") or choice


def _unmarked(text: str) -> str:
    return _MARKUP.sub("", _BOX.sub(r"\1", _BOX.sub(r"\1", text)))


def _readable(text: str) -> str:
    r"""Return the text with numbers in plain form: no "1{,}000", "1\,000" or "\frac{1}{2}"."""
    return _FRACTION.sub(r"\1/\2", _NARROW.sub("", text.replace("{,}", ",")))


def _rest(text: str, start: int) -> str:
    """Return the rest of the line, or if that is empty the next line with text."""
    return text[start : start + _LONGEST].lstrip(" \t\r\n:#").partition("\n")[0]


def _value(number: "re.Match[str]") -> Fraction:
    value = Fraction(number["number"].replace(",", ""))
    if number["under"] and int(number["under"]):
        value /= int(number["under"])
    value += Fraction((number["whole"] or "0").replace(",", ""))
    return -value if number["sign"] or number["minus"] else value
