"""Numbers with rules of their own: phones, IBANs, cards. They need `edgewise[redact]`."""

import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from edgewise.cloud.redaction.base import Span
from edgewise.errors import UsageError

_GAP = r"[ .\u00a0\u202f\u2010-\u2013-]"
_CARD = re.compile(
    r"(?<![\w.])(?<!\d-)(?=("
    rf"\d{{13,19}}|\d{{4}}({_GAP})\d{{4}}\2\d{{4}}\2\d{{1,7}}|\d{{4}}({_GAP})\d{{6}}\3\d{{4,5}}"
    r")(?![\w]|[-.]\d))"
)
_ISSUED = re.compile(r"4|5[0-8]|2[2-7]|3[0-9]|6[0-9]|81|9792")
"""How numbers of cards begin, by ISO/IEC 7812's ranges for banks and merchants."""

_IBAN = re.compile(r"(?<![^\W_])(?=([A-Za-z]{2}\d\d(?:[ \u00a0\u202f-]?[A-Za-z0-9]){11,40}))")
_IBAN_LENGTHS = range(15, 35)

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
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){2,3}|\d+\.\d+")
"""An IP address or a part of one, or a fraction."""
_BREAKS = re.compile(r"[ ()./\u00a0\u2010-\u2013-]")
_FEWEST = 9
"""Digits of a number that begins with no zero and is not said to be one."""

_NUMBER_OF = 40
"""Characters before a number that may say what it is."""

REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "AT", "CH", "PL", "IN", "AU", "BR", "JP", "CN")
"""Whose national numbers are known; those with a country's code are known of all."""

_OPEN = re.compile(r"(?<![\w.])\+?\(?\d(?:[ ().\u00a0\u2010-\u2013/-]{0,3}\d){6,32}+[ ().-]{0,3}\Z")
_OPEN_IBAN = re.compile(r"(?<![^\W_])[A-Z]{2}\d\d(?:[ -]?[A-Z0-9]){4,32}+[ -]?\Z")


class Card:
    """Numbers of payment cards: length, grouping, how they begin, and Luhn's check digit."""

    labels = ("CARD",)

    def __init__(self) -> None:
        self._luhn = _extra("stdnum.luhn")

    def find(self, text: str) -> Iterator[Span]:
        for found in _CARD.finditer(text):
            digits = "".join(one for one in found[1] if one.isdecimal())
            if (
                13 <= len(digits) <= 19
                and len(set(digits)) > 1
                and _ISSUED.match(digits)
                and self._luhn.is_valid(digits)
            ):
                yield Span(found.start(), found.end(1), "CARD")

    def open_from(self, tail: str) -> int | None:
        return _start(_OPEN.search(tail))


class Iban:
    """Numbers of bank accounts: a country's form and length, and the remainder by 97."""

    labels = ("IBAN",)

    def __init__(self) -> None:
        self._iban = _extra("stdnum.iban")

    def find(self, text: str) -> Iterator[Span]:
        beyond = 0
        for found in _IBAN.finditer(text):
            if found.start() >= beyond:
                end = self._end(text, found.start(), found.end(1))
                if end:
                    beyond = end
                    yield Span(found.start(), end, "IBAN")

    def open_from(self, tail: str) -> int | None:
        return _start(_OPEN_IBAN.search(tail))

    def _end(self, text: str, start: int, last: int) -> int | None:
        """Of the account's number that begins at `start`."""
        written = ""
        for at in range(start, last):
            if text[at].isalnum():
                written += text[at].upper()
                inside = at + 1 < len(text) and text[at + 1].isalnum()
                if len(written) in _IBAN_LENGTHS and not inside and self._is_one(written):
                    return at + 1
        return None

    def _is_one(self, written: str) -> bool:
        turned = written[4:] + written[:4]
        # Cheaper than the forms of all countries.
        plain = (
            turned.isascii()
            and "02" <= written[2:4] <= "98"
            and int("".join(str(int(one, 36)) for one in turned)) % 97 == 1
        )
        return plain and bool(self._iban.is_valid(written, check_country=False))


class Phone:
    """Phone numbers that are valid in their country.

    With a country's code, of all countries; else of `REGIONS`, where the number is divided as one,
    begins with a zero, or is said to be one.
    """

    labels = ("PHONE",)

    def __init__(self) -> None:
        self._phones = _extra("phonenumbers")

    def find(self, text: str) -> Iterator[Span]:
        for found in _PHONE.finditer(text):
            start = found.start() + (found[0][0] == "(" and ")" not in found[0])
            written = text[start : found.end()]
            if self._is_one(written, text[max(0, start - _NUMBER_OF) : start]):
                yield Span(start, found.end(), "PHONE")

    def open_from(self, tail: str) -> int | None:
        return _start(_OPEN.search(tail))

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
        """Whether it is, and divided as numbers there are, which a number of something is not."""
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


def _start(found: re.Match[str] | None) -> int | None:
    return None if found is None else found.start()


def _extra(module: str) -> Any:
    """Raises `UsageError` where it is not installed."""
    try:
        return import_module(module)
    except ImportError as error:
        raise UsageError(
            f"To redact phone numbers, IBANs and cards takes {module.partition('.')[0]}: "
            "pip install 'edgewise[redact]'",
            hint="or name the other classes alone: email,ip,secret",
            setting="redact",
        ) from error
