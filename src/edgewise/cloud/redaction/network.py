"""E-mail and IP addresses.

Here and beside, a pattern reads no character twice: starts are looked up by what stands before
them, and what was read is not given back.
"""

import ipaddress
import re
from collections.abc import Iterator

from edgewise.cloud.redaction.base import Span

_EMAIL = re.compile(r"(?<![\w.%+'-])[\w.%+'-]++@([^\W_](?:[\w-]*+)(?:\.[\w-]++)++)")
_OPEN_EMAIL = re.compile(r"(?<![\w.%+'-])[\w.%+'-]++@[\w.-]*+\Z")

_V4 = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?!\d|\.\d|\w)")
_V6 = re.compile(r"(?<![\w:.])(?=[0-9A-Fa-f]{0,4}:)[0-9A-Fa-f:.]{2,64}+(?![\w:])")
_VERSION = re.compile(r"(?:\bv|version|release|build|firmware)[ :=]{0,2}\Z", re.IGNORECASE)
_OPEN_V4 = re.compile(r"(?<![\w.])\d{1,3}\.\d{1,3}\.(?:\d{1,3}\.?(?:\d{1,3})?)?\Z")
_OPEN_V6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{0,4}){2,8}\Z")

_SAYS_NOTHING = ("0.", "127.", "255.")
"""This host, any host, and masks."""


class Email:
    """E-mail addresses, by their form."""

    labels = ("EMAIL",)

    def find(self, text: str) -> Iterator[Span]:
        for found in _EMAIL.finditer(text) if "@" in text else ():
            domain = found[1].rstrip("-_.")
            last = domain.rpartition(".")[2]
            if "." in domain and len(last) >= 2 and not last.isdigit():
                end = found.start(1) + len(domain)
                lead = len(found[0]) - len(found[0].lstrip(".'"))
                yield Span(found.start() + lead, end, "EMAIL")

    def open_from(self, tail: str) -> int | None:
        return _start(_OPEN_EMAIL.search(tail))


class Ip:
    """IPv4 and IPv6 addresses, but those that every host has, and not what is called a version."""

    labels = ("IP",)

    def find(self, text: str) -> Iterator[Span]:
        for found in _V4.finditer(text):
            before = text[max(0, found.start() - 12) : found.start()]
            if not found[0].startswith(_SAYS_NOTHING) and not _VERSION.search(before):
                yield from _address(found.start(), found[0])
        for found in _V6.finditer(text) if ":" in text else ():
            if found[0].count(":") < 2:
                continue
            yield from _address(found.start(), found[0].rstrip(".:"))
            if found[0].endswith("::"):
                yield from _address(found.start(), found[0])

    def open_from(self, tail: str) -> int | None:
        places = [_start(one.search(tail)) for one in (_OPEN_V4, _OPEN_V6)]
        return min((at for at in places if at is not None), default=None)


def _address(start: int, written: str) -> Iterator[Span]:
    try:
        address = ipaddress.ip_address(written)
    except ValueError:
        return
    if not (address.is_unspecified or address.is_loopback):
        yield Span(start, start + len(written), "IP")


def _start(found: re.Match[str] | None) -> int | None:
    return None if found is None else found.start()
