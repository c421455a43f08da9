"""Placeholders that replace a conversation's private words in the text that the cloud reads.

`<EMAIL_1>` replaces the first e-mail address wherever it occurs. Text that looks like a placeholder
itself is replaced, too, by `<TEXT_1>` and so on.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from edgewise.cloud.redaction import Restored, Span
from edgewise.errors import Blocked
from edgewise.options.redact.normal import Normal

LITERAL = "TEXT"
"""The label of text that only looks like a placeholder."""

MOST_FOUND = 10_000
"""Most private words of a conversation; one with more is not sent."""

_LONGEST = 80  # characters of the longest placeholder, however it is written
_ANYWHERE = 8  # characters of a word that is found inside of others, too
_DEEPEST = 32  # parentheses within each other in an address of Markdown's
_SHORTEST = 3  # characters of a word that is looked for again where no detector sees it

_OPENS, _CLOSES = r"(?:<|\uff1c|&lt;)", r"(?:>|\uff1e|&gt;)"
_BETWEEN = r"(?:\\?[\s_-]){0,3}"


# Beginnings of tool calls, as models write them and agents read them; [1] ends by its brackets.
_CALL = re.compile(
    r"""(?imx) <[|\uff5c]?(?:\w{1,24}[:_\u2581.-])?(?:tool|function|invoke|call|python_tag)\W?
    | \[TOOL_CALLS\] | \bto=functions\. | ```\s?tool | ^\s{0,9}action(?:\ input)?:
    | ( ^\s{0,9}\[[\w.]{1,99}\(
    | "(?:arguments|parameters|args|params|tool|tool_input|action_input)"\s{0,9}:
    | "input"\s{0,9}:(?=\s{0,9}\{) )"""
)

# A string of the call may hold the sign alone, but no line's end.
_CALL_ENDS = "}\n</tool_call>"
# In JSON and in Python, whose strings and comments may hold brackets.
_BRACKETS = re.compile(r"(?s)[{}\[\]]|#[^\n]*+|(\"\"\"|'''|[\"'])(?:\\.|(?!\1).)*+\1?")

_ELEMENT = re.compile(r"(?m)(?:^[ \t]*|(?<=>))<([A-Za-z][\w.:-]*+)[^<>]*+>")
_NAMES = """
a abbr answer article aside b blockquote body br caption center cite code dd del details div dl dt
em figcaption figure footer h1 h2 h3 h4 h5 h6 head header hr html i ins kbd li main mark nav ol p
pre q reasoning s samp section small span strong sub summary sup table tbody td tfoot th thead think
thinking title tr u ul var
"""
_OF_TEXT = frozenset(_NAMES.split())  # elements that no agent reads as a call
# URLs in any text. Without slashes only some schemes count, as in http:x: other `a:b` is text.
_ADDRESS = re.compile(
    r"(?i)(?:\\?/){2}|www\.|(?<![^\W_])(?:(?:https?|ftp|wss?|javascript):|file:\\|"
    r"mailto:(?:(?!mailto:)[^\s?&])*+[?&])"
)

_TAG = re.compile(
    r"(?i)<[a-z][\w.:-]*+[\s/](?:[^>\"']|\"[^\"]*+\"|'[^']*+')*+(?:[\"'][^\"']*\Z)?(>?)"
)
# In lists and quotations, too. The address may stand in the next line.
_DEFINES = (
    r"(?<![^\n\r])(?:[ \t>]|[*+-][ \t]|\d{1,9}[.)][ \t])*+\[(?:[^\[\]\\]|\\[\s\S]){1,999}+\]:"
    r"[ \t>]*+(?:\r?\n|\r)?+[ \t>]*+"
)
_EMPTY = r"\n[ \t\r]*+\n"
# What begins an address in Markdown and CSS, and the signs that may end it.
_LINKS = [
    (re.compile(r"(?i)\burl\("), re.compile(r"(?s)\\.|[()]")),
    # An empty line ends a link, a blank does not for every renderer.
    (re.compile(r"\]\("), re.compile(rf"\\[^\n]|[()]|{_EMPTY}")),
    (re.compile(rf"(?:\]\([\s>]*+|{_DEFINES})<"), re.compile(rf"\\[^\n]|>|{_EMPTY}")),
    # One without these signs leads to no other host.
    (re.compile(rf"{_DEFINES}(?!<)(?=[^ \t\n\r]*[/\\&])"), re.compile(r"[ \t\n\r]")),
]

_VALUE = re.compile(r"[\s/\"'][\w:-]+\s{0,9}=\s{0,9}([\"'])")
_PARTS = re.compile(r"[/\\&:]")


class Forms:
    """Finds placeholders in text, however they are written. `labels` are words such as EMAIL."""

    def __init__(self, labels: Iterable[str]) -> None:
        self.labels = sorted({*labels, LITERAL}, key=lambda one: (-len(one), one))
        names = "|".join(map(re.escape, self.labels))
        self._like = re.compile(
            rf"{_OPENS}\s{{0,3}}(?i:({names}){_BETWEEN}(\d{{1,6}}))\s{{0,3}}{_CLOSES}"
            rf"|[<\[](?:{names}|REDACTED|MASKED)[>\]]"
            rf"|(?<![^\W_])(?i:{names})\\?_\d{{1,6}}"
        )
        self._open = re.compile(
            rf"(?i:({_OPENS}\s{{0,3}}|\[)([A-Z_]{{0,40}}){_BETWEEN}\d{{0,6}}\s{{0,3}}(?:&[gt]{{0,2}})?\Z)"
            rf"|(?i:(?<![^\W_])({names})\\?_?\d{{0,6}}\Z)"
        )

    def like(self, text: str) -> list[Span]:
        """Return the spans of `text` that look like a placeholder, in order.

        A span's `label` is the whole placeholder, such as <EMAIL_1>. It is "" for a form in which
        the angle brackets or the number are missing, such as [EMAIL].
        """
        return [
            Span(*one.span(), _named(one[1].upper(), int(one[2])) if one[1] else "")
            for one in self._like.finditer(text)
        ]

    def open_from(self, text: str) -> tuple[int, bool] | None:
        """Return where an incomplete placeholder at the end of `text` begins; None without one.

        The second value is True if the end is almost surely a placeholder, such as "<EMAI". It is
        False if it may also be other text, such as "<" alone.
        """
        before = max(0, len(text) - _LONGEST)
        for found in self._open.finditer(text, before):
            opens, label = found[1], (found[2] or "").strip("_").upper()
            if found[3] is not None:
                return found.start(), found[0][-1] == "_" or found[0][-1].isdigit()
            begins = any(one.startswith(label) for one in self.labels)
            if begins and (label or opens != "["):
                return found.start(), len(label) > 2
        return None


class Placeholders:
    """A conversation's placeholders: `names` maps private words to them. Not thread-safe."""

    def __init__(self, forms: Forms) -> None:
        self._forms = forms
        self.names: dict[str, str] = {}
        self._counts = Counter[str]()

    def copy(self) -> "Placeholders":
        """Return a copy that can be extended without a change to this one."""
        made = Placeholders(self._forms)
        made.names, made._counts = self.names.copy(), self._counts.copy()
        return made

    def places(self, text: str, found: Iterable[Span]) -> list[Span]:
        """Return the spans of `text` to replace, in order, none overlapping.

        They are: the private words `found`; other occurrences in `text` of these words, and of
        words found earlier in the conversation, if they have three characters or more; and text
        that looks like a placeholder. Raises `Blocked` if the conversation has more than
        `MOST_FOUND` private words.
        """
        spans, read = list(found), Normal(text)
        labels = {text[one.start : one.end]: one.label for one in spans}
        if len(self.names) + len(labels) > MOST_FOUND:
            raise Blocked(f"The text has more than {MOST_FOUND} private words, so nothing is sent.")
        for word in dict.fromkeys([*self.names, *labels]):
            plain = Normal(word).text
            label = labels.get(word) or self.names[word][1:].rpartition("_")[0]
            if len(plain) >= _SHORTEST:
                again = (Span(at, at + len(plain), label) for at in _occurrences(read.text, plain))
                spans += map(read.span, again)
        # So that no text forges a placeholder.
        spans += [Span(one.start, one.end, LITERAL) for one in self._forms.like(text)]
        return _joined(one for one in spans if one.start < one.end)

    def replaced(self, text: str, places: Sequence[Span]) -> str:
        """Return `text` with placeholders at `places`; new words are numbered and remembered."""
        parts, at = list[str](), 0
        for start, end, label in places:
            parts += [text[at:start], self._name(text[start:end], label)]
            at = end
        return "".join([*parts, text[at:]])

    def restored(self, reply: str, *, begun: str, ended: bool) -> Restored:
        """Return the cloud's `reply` with each placeholder replaced by its word.

        The text ends before a placeholder that has no word, or before an incomplete one at the
        reply's end. With `ended` the reply is complete, and an end that only may be a placeholder
        is kept. `begun` is the answer before the reply, with private words. Inside a tool call, URL
        or link a placeholder stays, unless the call, URL or link already contains its word.
        """
        words = {name: word for word, name in self.names.items()}
        half = self._forms.open_from(reply)
        text = reply if half is None or (ended and not half[1]) else reply[: half[0]]
        parts, whole, at, length = list[str](), list[tuple[int, int]](), 0, 0
        for one in self._forms.like(text):
            word = words.get(one.label)
            before = text[at : one.start]
            if word is None:
                return Restored("".join([*parts, before]), tuple(whole), "unknown")
            literal = self.names[word].startswith(f"<{LITERAL}_")
            plain, told = Normal(word).text, _told(begun + "".join([*parts, before]), self.names)
            # What a tool or another host is told the edge model decides, never the cloud.
            if not literal and any(plain not in Normal(part).text for part in told):
                word = text[one.start : one.end]
            parts += [before, word]
            length += len(before)
            whole.append((length, length + len(word)))
            length, at = length + len(word), one.end
        left = None if len(text) == len(reply) else "unknown" if ended else "open"
        return Restored("".join([*parts, text[at:]]), tuple(whole), left)

    def _name(self, word: str, label: str) -> str:
        name = self.names.get(word)
        if name is None:
            self._counts[label] += 1
            name = self.names[word] = _named(label, self._counts[label])
        return name


def _named(label: str, number: int) -> str:
    return f"<{label}_{number}>"


def _told(text: str, words: Iterable[str]) -> Iterator[str]:
    """Yield tool calls and addresses that are open at the text's end, which programs act on."""
    yield from _open(text, _CALL, _is_over)
    yield from _open(text, _ELEMENT, _is_closed)
    run = "" if text[-1:].isspace() else "".join(text.split()[-1:])
    if _has_address(run, words):
        yield run
    for begins, signs in _LINKS:
        yield from _open(text, begins, lambda one, signs=signs: _leaves(one, signs))
    yield from (one[0] for one in _TAG.finditer(text) if not one[1] and "=" in one[0])
    yield from _open(
        text, _VALUE, lambda one: _follows(one, one[1]) or not _PARTS.search(text, one.end())
    )


def _open(
    text: str, begins: re.Pattern[str], is_over: Callable[[re.Match[str]], bool]
) -> Iterator[str]:
    """Yield the text behind the last match of `begins` for which `is_over` is False, if any."""
    for one in reversed(list(begins.finditer(text))):
        if not is_over(one):
            yield text[one.end() :]
            return


def _has_address(run: str, words: Iterable[str]) -> bool:
    """Return whether `run` has a URL; what only looks like one inside private `words` is none."""
    for word in words if _ADDRESS.search(run) else ():
        found = _ADDRESS.search(word) if word in run else None
        if found and found.start():
            run = run.replace(word, "\0")
    return _ADDRESS.search(run) is not None


def _follows(one: re.Match[str], end: str) -> bool:
    return one.string.find(end, one.end()) >= 0


def _is_over(sign: re.Match[str]) -> bool:
    """Return whether a tool call has ended; False for forms that do not show it."""
    if sign[0].lower() == "<tool_call>":
        return _follows(sign, _CALL_ENDS)
    return bool(sign[1]) and _leaves(sign, _BRACKETS)


def _leaves(one: re.Match[str], signs: re.Pattern[str]) -> bool:
    """Return whether what `one` begins has ended by `signs`: at a blank, or a bracket too many."""
    depth = 0
    for sign in signs.finditer(one.string, one.end()):
        depth += 1 if sign[0] in "{[(" else -1 if sign[0] in "}])>" else 0
        if sign[0].isspace() or not 0 <= depth <= _DEEPEST:
            return depth <= _DEEPEST
    return False


def _is_closed(opens: re.Match[str]) -> bool:
    """Return whether an XML element has ended, or has a name that no agent reads as a call."""
    name = opens[1]
    return name.isupper() or name.lower() in _OF_TEXT or _follows(opens, f"</{name}>")


def _occurrences(text: str, word: str) -> list[int]:
    found, at = list[int](), text.find(word)
    while at >= 0:
        end = at + len(word)
        inside = (at and word[0].isalnum() and text[at - 1].isalnum()) or (
            end < len(text) and word[-1].isalnum() and text[end].isalnum()
        )
        if not inside or len(word) >= _ANYWHERE:
            found.append(at)
        at = text.find(word, end)
    return found


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Merge overlapping spans; the label is that of the first that is not `LITERAL`."""
    made: list[Span] = []
    for one in sorted(spans, key=lambda one: (one.start, -one.end)):
        if made and one.start < made[-1].end:
            last = made[-1]
            label = one.label if last.label == LITERAL else last.label
            made[-1] = Span(last.start, max(last.end, one.end), label)
        else:
            made.append(one)
    return made
