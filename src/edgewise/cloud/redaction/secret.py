"""Keys, tokens and passwords: by how they begin, by what stands before them, by their entropy."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator

from edgewise.cloud.redaction.base import Span

_BEGINNINGS: tuple[tuple[str, str, int], ...] = (
    ("AKIA ASIA AROA AIDA AGPA ANPA ABIA ACCA", r"[A-Z0-9]", 16),  # AWS
    ("ghp_ gho_ ghu_ ghs_ ghr_ github_pat_", r"\w", 22),
    ("glpat- gldt- glrt- glptt- glcbt-", r"[\w-]", 20),  # GitLab
    ("xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs- xapp-", r"[\w-]", 10),  # Slack
    ("sk-", r"[\w-]", 20),  # OpenAI, Anthropic and others
    ("sk_ rk_ pk_ whsec_", r"\w", 16),  # Stripe
    ("AIza", r"[\w-]", 30),  # Google
    ("ya29.", r"[\w-]", 20),
    ("hf_ npm_", r"\w", 30),
    ("pypi-", r"[\w-]", 40),
    ("SG.", r"[\w.-]", 32),  # SendGrid
    ("dop_v1_", r"\w", 40),  # DigitalOcean
    ("key-", r"[0-9a-f]", 32),  # Mailgun
    ("ew-", r"[\w-]", 20),
    ("eyJ", r"[\w.-]", 20),  # JWT
)
"""What secrets of services begin with, what follows, and at least how much of it."""

_SERVICES = [
    (begins, re.compile(f"{of}{{{least},}}+"), re.compile(f"{of}*+"))
    for listed, of, least in _BEGINNINGS
    for begins in listed.split()
]
_KEY = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_END = "-----END "
_IN_URL = re.compile(r"://[^\s/@:]{1,128}+:([^\s/@]{1,256}+)@")
_NAMED = re.compile(
    r"[AaCcMmPpSsTt](?i:(?<=p)(?:asswor[dt]|asswd|asswort|assphrase|wd)|(?<=s)ecret|(?<=t)oken|"
    r"(?<=a)(?:pi|ccess)[ _-]?key|(?<=c)ontrase[n\xf1]a|(?<=m)ot de passe)[\"']?"
    r"(?i: (?:is|ist|es|est|was)\b)?[ :=]{1,3}[\"'`]?(?=([^\s\"'`<>,;]{6,256}))"
)
_DENSE = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{20,512}+={0,2}(?![\w+/=-])")
_DIGEST = re.compile(r"(?:sha\d{1,3}|md5|blake\w{2,3})[-:= ]\Z", re.IGNORECASE)

BITS = 4.0
"""Shannon entropy of a character from which on a long run is taken for a secret."""


class Secret:
    """Secrets of known services, private keys, what is called a password, and dense runs."""

    labels = ("SECRET",)

    def find(self, text: str) -> Iterator[Span]:
        for begins, more, _ in _SERVICES:
            yield from _of_service(text, begins, more)
        yield from _private_keys(text)
        for found in _IN_URL.finditer(text):
            yield Span(found.start(1), found.end(1), "SECRET")
        for found in _NAMED.finditer(text):
            value = found[1].rstrip(".!?):")
            if _is_no_word(value):
                yield Span(found.start(1), found.start(1) + len(value), "SECRET")
        for found in _DENSE.finditer(text):
            before = text[max(0, found.start() - 10) : found.start()]
            if _is_dense(found[0]) and not _DIGEST.search(before):
                yield Span(found.start(), found.end(), "SECRET")

    def open_from(self, tail: str) -> int | None:
        for begins, _, more in _SERVICES:
            at = tail.rfind(begins)
            inside = at > 0 and (tail[at - 1].isalnum() or tail[at - 1] == "_")
            if at >= 0 and not inside and more.fullmatch(tail, at + len(begins)):
                return at
        return None


def _of_service(text: str, begins: str, more: re.Pattern[str]) -> Iterator[Span]:
    at = text.find(begins)
    while at >= 0:
        found = more.match(text, at + len(begins))
        inside = at > 0 and (text[at - 1].isalpha() or text[at - 1] == "_")
        if found is None:
            end = at + 1
        else:
            end = found.end()
            if not inside:
                yield Span(at, at + len(text[at:end].rstrip(".-")), "SECRET")
        at = text.find(begins, end)


def _private_keys(text: str) -> Iterator[Span]:
    """From where they begin to their end's line, or to the text's end."""
    at = 0
    while (found := _KEY.search(text, at)) is not None:
        end = text.find(_KEY_END, found.end())
        line = text.find("-----", end + len(_KEY_END)) if end >= 0 else -1
        at = line + len("-----") if line >= 0 else len(text)
        yield Span(found.start(), at, "SECRET")


def _is_no_word(value: str) -> bool:
    """Whether it has letters, and digits or signs, as words do not."""
    letters = sum(map(str.isalpha, value))
    return 0 < letters < len(value.replace("-", "").replace("_", "").replace("/", ""))


def _is_dense(run: str) -> bool:
    plain = run.rstrip("=")
    kinds = (str.islower, str.isupper, str.isdigit)
    if not all(any(map(kind, plain)) for kind in kinds) or plain.startswith(("sha", "md5")):
        return False
    counts = Counter(plain)
    bits = -sum(n / len(plain) * math.log2(n / len(plain)) for n in counts.values())
    # Names and paths are words with signs between; their digits stand together at an end.
    turns = sum(_kind(a) != _kind(b) for a, b in itertools.pairwise(plain))
    return bits >= BITS and turns >= len(plain) / 2.5


def _kind(char: str) -> int:
    return 0 if char.isdigit() else 1 if char.isupper() else 2
