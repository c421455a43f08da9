"""Detectors of private words: e-mail and IP addresses, phones, IBANs, payment cards, secrets.

The method `find` yields the spans of such words in a text. `Phone` needs `edgewise[redact]`.
"""

import ipaddress
import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from edgewise.cloud.adapter.word_boundary import is_unspaced
from edgewise.cloud.redaction import Span
from edgewise.errors import UsageError
from edgewise.options.redact.normal import Normal

# Quantifiers are bounded, possessive or lazy, here and below: time grows no faster than the text.
_EMAIL = re.compile(
    r"(?<![\w.%+'-])(?:[\w.+'-]|%(?!40))++(?:@|%40)([^\W_](?:[\w-]*+)(?:\.[\w-]++)++)"
)

_V4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d|\w)")
_V6 = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f]{0,4}:)[0-9A-Fa-f:.]{2,64}+(?![\w:])")
_VERSION = re.compile(r"(?:\bv|version|release|build|firmware)[ :=]{0,2}\Z", re.IGNORECASE)

_SAYS_NOTHING = ("0.", "127.", "255.")  # this host, any host, and masks


class Email:
    """Finds e-mail addresses, by their form."""

    labels = ("EMAIL",)

    def find(self, text: str) -> Iterator[Span]:
        for match in _EMAIL.finditer(text):
            domain = match[1].rstrip("-_.")
            last = domain.rpartition(".")[2]
            if "." in domain and len(last) >= 2 and not last.isdigit():
                end = match.start(1) + len(domain)
                lead = len(match[0]) - len(match[0].lstrip(".'"))
                yield Span(match.start() + lead, end, "EMAIL")


class Ip:
    """Finds IPv4 and IPv6 addresses, but no version numbers, loopback addresses or netmasks."""

    labels = ("IP",)

    def find(self, text: str) -> Iterator[Span]:
        for match in _V4.finditer(text):
            before = text[max(0, match.start() - 12) : match.start()]
            if not match[0].startswith(_SAYS_NOTHING) and not _VERSION.search(before):
                yield from _address(match.start(), match[0])
        for match in _V6.finditer(text) if ":" in text else ():
            if match[0].count(":") < 2:
                continue
            yield from _address(match.start(), match[0].rstrip(".:"))
            if match[0].endswith("::"):
                yield from _address(match.start(), match[0])


def _address(start: int, written: str) -> Iterator[Span]:
    try:
        address = ipaddress.ip_address(written)
    except ValueError:
        return
    if not (address.is_unspecified or address.is_loopback):
        yield Span(start, start + len(written), "IP")


_RUN = re.compile(r"\w+")
_DOTTED_I = str.maketrans("\u0130\u0131", "ii")

_GAP = r"[ .\u00a0\u202f\u2010-\u2013-]"
_CARD = re.compile(
    r"(?<![\w.])(?<!\d-)(?=("
    rf"\d{{13,19}}|\d{{4}}({_GAP})\d{{4}}\2\d{{4}}\2\d{{1,7}}|\d{{4}}({_GAP})\d{{6}}\3\d{{4,5}}"
    r")(?![\w]|[-.]\d))"
)
# First digits of card numbers that banks and merchants issue (ISO/IEC 7812).
_ISSUED = re.compile(r"4|5[0-8]|2[2-7]|3[0-9]|6[0-9]|81|9792")

_IBAN = re.compile(
    r"(?<![^\W_])(?=([A-Za-z]{2}(?:0[2-9]|[1-8]\d|9[0-8])(?:[ \u00a0\u202f-]?[A-Za-z0-9]){11,40}))"
)

_PHONE = re.compile(
    r"(?<![\w.,/-])(?<![\w][#:])(?:\+|\(\+?|00)?\d(?:[ \u00a0().\u2010-\u2013/-]{0,3}\d){6,16}+"
    r"(?![\w])"
)
_CALLED = re.compile(
    r"\b(?:tel|phone|call|mobile|cell|fax|ring|dial|sms|text|whatsapp|reach|telefon|handy|ruf|"
    r"t[e\xe9]l[e\xe9]phone|m[o\xf3]vil|telefono|telefone)",
    re.IGNORECASE,
)
_DATE = re.compile(r"\d{4}[-./ ]\d{1,2}[-./ ]\d{1,2}\b|\d{1,2}[-./ ]\d{1,2}[-./ ](?:19|20)\d\d\b")
# Matches an IP address or a part of one, or a decimal fraction.
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){2,3}|\d+\.\d+")
_BREAKS = re.compile(r"[ ()./\u00a0\u2010-\u2013-]")
_FEWEST = 9  # digits of a number that begins with no zero and is not said to be one
_NUMBER_OF = 40  # characters before a number that may say what it is

REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "AT", "CH", "PL", "IN", "AU", "BR", "JP", "CN")
"""Countries whose national numbers are found; numbers with a country code are for all countries."""


class Card:
    """Finds payment card numbers, by length, grouping, first digits, and Luhn's check digit."""

    labels = ("CARD",)

    def find(self, text: str) -> Iterator[Span]:
        for match in _CARD.finditer(text):
            digits = "".join(filter(str.isdecimal, match[1]))
            issued = 13 <= len(digits) <= 19 and len(set(digits)) > 1 and _ISSUED.match(digits)
            doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
            if issued and (sum(map(int, digits[::-2])) + sum(doubled)) % 10 == 0:
                yield Span(match.start(), match.end(1), "CARD")


class Iban:
    """Finds bank account numbers (IBANs), by their form and their check digits (modulo 97)."""

    labels = ("IBAN",)

    def find(self, text: str) -> Iterator[Span]:
        end = 0
        for match in _IBAN.finditer(text):
            start = match.start()
            # The longest: what is shorter has the remainder by chance.
            for at in range(match.end(1), max(start, end), -1):
                word_ends = text[at - 1].isalnum() and not text[at : at + 1].isalnum()
                if start >= end and word_ends and _is_account(text[start:at]):
                    end = at
                    yield Span(start, end, "IBAN")


def _is_account(written: str) -> bool:
    plain = "".join(filter(str.isalnum, written))
    if not 15 <= len(plain) <= 34:
        return False
    return int("".join(str(int(char, 36)) for char in plain[4:] + plain[:4])) % 97 == 1


class Phone:
    """Finds phone numbers that are valid in their country.

    A number with a country code may be of any country. A number without one must be valid in one of
    `REGIONS`, and must also begin with a zero, follow a word such as "phone", or have its digits
    grouped as is usual in that region.
    """

    labels = ("PHONE",)

    def __init__(self) -> None:
        """Import the package phonenumbers. Raises `UsageError` if it is missing."""
        try:
            self._phones: Any = import_module("phonenumbers")
        except ImportError as error:
            raise UsageError(
                "Redacting phone numbers needs phonenumbers: pip install 'edgewise[redact]'",
                hint="or name only the other classes: email,iban,card,ip,secret",
                setting="redact",
            ) from error

    def find(self, text: str) -> Iterator[Span]:
        for match in _PHONE.finditer(text):
            start = match.start() + (match[0][0] == "(" and ")" not in match[0])
            written = text[start : match.end()]
            if self._is_one(written, text[max(0, start - _NUMBER_OF) : start]):
                yield Span(start, match.end(), "PHONE")

    def _is_one(self, written: str, before: str) -> bool:
        bare = written.lstrip("(")
        if bare.startswith("+"):
            return self._is_valid(bare, None)
        if _DATE.search(written) or _ADDRESS.fullmatch(written):
            return False
        if bare.startswith("00"):
            return self._is_valid("+" + bare[2:].lstrip(" "), None)
        if bare.startswith("0") or _CALLED.search(before):
            return any(self._is_valid(written, region) for region in REGIONS)
        return any(self._is_divided(written, region) for region in REGIONS)

    def _is_divided(self, written: str, region: str) -> bool:
        """Return whether a number is valid in `region`, and grouped as usual there."""
        if sum(map(str.isdigit, written)) < _FEWEST or not _BREAKS.search(written):
            return False
        strict = self._phones.Leniency.STRICT_GROUPING
        return any(True for _ in self._phones.PhoneNumberMatcher(written, region, strict))

    def _is_valid(self, written: str, region: str | None) -> bool:
        try:
            number = self._phones.parse(written, region)
        except self._phones.NumberParseException:
            return False
        return bool(self._phones.is_valid_number(number))


# Prefixes of services' secrets, the characters that follow, and how many at least.
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

_SERVICE = re.compile(
    r"(?<![^\W\d])(?:"
    + "|".join(
        f"(?:{'|'.join(map(re.escape, listed.split()))}){of}{{{least},}}+"
        for listed, of, least in _BEGINNINGS
    )
    + ")"
)
_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [^-]{0,60}-----|\Z)"
)
_IN_URL = re.compile(r"://[^\s/@:]{1,128}+:([^\s/@]{1,256}+)@")
_NAMED = re.compile(
    r"[AaCcMmPpSsTt](?i:(?<=p)(?:asswor[dt]|asswd|asswort|assphrase|wd)|(?<=s)ecret|(?<=t)oken|"
    r"(?<=a)(?:pi|ccess)[ _-]?key|(?<=c)ontrase[n\xf1]a|(?<=m)ot de passe)[\"']?"
    r"(?i: (?:is|ist|es|est|was)\b)?[ :=]{1,3}[\"'`]?(?=([^\s\"'`<>,;]{6,256}))"
)
_DENSE = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{20,512}+={0,2}(?![\w+/=-])")
_DIGEST = re.compile(r"(?:sha\d{1,3}|md5|blake\w{2,3})[-:= ]\Z", re.IGNORECASE)

BITS = 4.0
"""Least Shannon entropy, in bits a character, of a long string that counts as a secret."""


class Secret:
    """Finds API keys, private keys, passwords, and strings that look random.

    Passwords are found in URLs, and after words such as `password:` or `token=`.
    """

    labels = ("SECRET",)

    def find(self, text: str) -> Iterator[Span]:
        for match in _SERVICE.finditer(text):
            yield Span(match.start(), match.start() + len(match[0].rstrip(".-")), "SECRET")
        for match in _KEY.finditer(text):
            yield Span(match.start(), match.end(), "SECRET")
        for match in _IN_URL.finditer(text):
            yield Span(match.start(1), match.end(1), "SECRET")
        for match in _NAMED.finditer(text):
            value = match[1].rstrip(".!?):")
            if _is_no_word(value):
                yield Span(match.start(1), match.start(1) + len(value), "SECRET")
        for match in _DENSE.finditer(text):
            before = text[max(0, match.start() - 10) : match.start()]
            if _is_dense(match[0]) and not _DIGEST.search(before):
                yield Span(match.start(), match.end(), "SECRET")


def _is_no_word(value: str) -> bool:
    """Return whether a value has letters and also digits or signs, unlike a word."""
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


class Words:
    """Finds words that the user listed, in any case and spacing, but not inside longer words.

    Words of scripts without spaces, such as Chinese, are found inside longer text as well.
    """

    labels = ("WORD",)

    def __init__(self, words: Sequence[str]) -> None:
        # Looked up by their first run of letters, but in scripts that have no spaces.
        self._by_run: dict[str, list[tuple[int, re.Pattern[str]]]] = defaultdict(list)
        self._anywhere: list[re.Pattern[str]] = []
        # Capitals may be written otherwise than the letter alone, as Turkish ones are.
        spelled = (one for word in words for one in (word, word.lower(), word.upper()))
        for word in dict.fromkeys(_folded(Normal(one).text) for one in spelled):
            run = _RUN.search(word)
            if run is None or any(map(is_unspaced, word)):
                self._anywhere.append(_pattern(word))
            else:
                self._by_run[run[0]].append((run.start(), _pattern(word)))

    def find(self, text: str) -> Iterator[Span]:
        folded, places = _folded(text), range(len(text))
        if len(folded) > len(text):
            places = [at for at, char in enumerate(text) for _ in _folded(char)]
        for match in self._matches(folded):
            yield Span(places[match.start()], places[match.end() - 1] + 1, "WORD")

    def _matches(self, folded: str) -> Iterator[re.Match[str]]:
        for run in _RUN.finditer(folded) if self._by_run else ():
            for before, pattern in self._by_run.get(run[0], ()):
                match = pattern.match(folded, max(0, run.start() - before))
                if match is not None:
                    yield match
        for pattern in self._anywhere:
            yield from pattern.finditer(folded)


def _folded(text: str) -> str:
    """Return `text` in lower case for comparisons; a letter may become more than one."""
    return text.translate(_DOTTED_I).casefold()


def _pattern(word: str) -> re.Pattern[str]:
    spelled = r"\s{1,8}".join(map(re.escape, word.split()))
    begins = r"(?<!\w)" if _RUN.match(word) and not is_unspaced(word[0]) else ""
    ends = r"(?!\w)" if _RUN.match(word[-1]) and not is_unspaced(word[-1]) else ""
    return re.compile(f"{begins}{spelled}{ends}")
