"""What redaction finds and what it misses: recall and precision of each class.

    python -m benchmarks.redaction --n 1000 --seed 1

Sentences with one planted value each, in the forms that people write them in, and sentences with
none but with what looks like one: order numbers, versions, dates, hashes. All are made here from a
seed. Found is a value that is covered whole; a false alarm is a place that no planted value is in.
Prints Markdown, with 95% Wilson intervals.
"""

import argparse
import random
import string
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from benchmarks.shared import ends, show
from edgewise.cloud.redaction import EXACT, WORDS, Redaction, Span
from edgewise.options.redact.filter import detectors_of

Draw = random.Random

NAMES = ["anna", "lena", "tom", "raj", "mei", "omar", "sofia", "jan", "kofi", "yuki", "noor", "eva"]
SURNAMES = ["smith", "müller", "garcia", "rossi", "novak", "kim", "okafor", "silva", "dubois"]
SITES = ["example.org", "mail.example.com", "firma.example.de", "uni.example.ac.uk", "x.example.io"]
OWN = ("Project Falcon", "Bluebird", "Anna-Lena Krüger", "Acme Holding", "張偉", "Room 12b")

FRAMES = (
    "{}",
    "My {what} is {}.",
    "Please use {} from now on, thanks!",
    "Send it to {} by Friday, {count} copies.",
    "Kannst du {} bitte prüfen? Ich brauche es bis {year}.",
    "Contact: {}; ask for {name}",
    "- {what}: {}\n- date: {year}-05-{count}",
    "J'ai noté {}, merci.",
    '{{"{what}": "{}", "count": {count}}}',
    "She said ({}) and left at 12:30.",
    "{what}={}\nDEBUG=true",
    "Is it {}? Or was it something else, {name}?",
)
"""`what` names the class."""


def digits(draw: Draw, form: str) -> str:
    """`#` is a digit, `%` one from 2 to 9."""
    return "".join(
        str(draw.randrange(10)) if c == "#" else str(draw.randrange(2, 10)) if c == "%" else c
        for c in form
    )


def email(draw: Draw) -> str:
    first, last = draw.choice(NAMES), draw.choice(SURNAMES)
    local = draw.choice([f"{first}.{last}", f"{first[0]}{last}", f"{first}+{draw.randrange(99)}"])
    return f"{draw.choice([local, local.title(), f'{first}_{last}'])}@{draw.choice(SITES)}"


PHONES = (
    *("+1 415 555 %###", "(212) 555-%###", "415-555-%###", "+1-202-555-%###", "312.555.%###"),
    *("020 7946 0###", "+44 20 7946 0###", "07911 12####", "+44 7911 12####"),
    *("030 9018%###", "+49 30 9018%###", "0171 23#####", "+49 171 23#####", "0049 89 23#####"),
    *("01 42 68 ## ##", "+33 1 42 68 ## ##", "06 12 ## ## ##", "+34 612 ### ###", "612 ### ###"),
    *("+39 06 698 #####", "020 624 ####", "+31 20 624 ####", "044 668 ## ##", "+41 44 668 ## ##"),
    *("+48 22 ### ## ##", "+91 98### #####", "098### #####", "+61 2 9### ####", "03-3### ####"),
    *("+55 11 9#### ####", "+81 3 3### ####", "+86 138 #### ####", "+46 8 123 ### ##"),
)
OTHER_PHONES = ("08-123 4## ##", "32 12 ## ##", "010-%###-####", "+82 10-%###-####", "55 %### ####")
"""Three of countries whose national numbers are not known."""

ACCOUNTS: Mapping[str, str] = {
    "DE": "370400440532######",
    "FR": "20041010050500#########",
    "ES": "21000418450200######",
    "GB": "NWBK6016133192####",
    "NL": "ABNA041716####",
    "AT": "19043002345#####",
    "CH": "0076201162385####",
    "BE": "539007547###",
    "IT": "X0542811101000000######",
    "PL": "10901014000007121981####",
    "SE": "500000005839825#####",
    "NO": "8601111####",
}


def iban(draw: Draw) -> str:
    country = draw.choice(list(ACCOUNTS))
    account = digits(draw, ACCOUNTS[country])
    rest = int("".join(str(int(c, 36)) for c in f"{account}{country}00")) % 97
    written = f"{country}{98 - rest:02}{account}"
    return written if draw.random() < 0.4 else " ".join(_groups(written))


def card(draw: Draw) -> str:
    begins = draw.choice(["4", "51", "52", "54", "55", "2221", "34", "37", "6011", "65", "3528"])
    length = 15 if begins in ("34", "37") else 16
    body = begins + digits(draw, "#" * (length - 1 - len(begins)))
    twice = [
        sum(divmod(int(c) * 2, 10)) if i % 2 == 0 else int(c) for i, c in enumerate(body[::-1])
    ]
    written = body + str(-sum(twice) % 10)
    parts = _groups(written) if length == 16 else [written[:4], written[4:10], written[10:]]
    return draw.choice([written, " ".join(parts), "-".join(parts)])


def ip(draw: Draw) -> str:
    if draw.random() < 0.6:
        return ".".join(str(draw.randrange(1, 255)) for _ in range(4)).replace("127.", "10.", 1)
    words = [f"{draw.randrange(1, 1 << 16):x}" for _ in range(8)]
    short = f"2001:db8:{words[0]}::{words[1]}"
    return draw.choice(
        [":".join(["2001", "db8", *words[2:]]), short, f"fe80::{words[2]}:{words[3]}"]
    )


def _key(draw: Draw, length: int, of: str = string.ascii_letters + string.digits) -> str:
    return "".join(draw.choice(of) for _ in range(length))


def secret(draw: Draw) -> str:
    upper = string.ascii_uppercase + string.digits
    made: Sequence[Callable[[], str]] = (
        lambda: f"AKIA{_key(draw, 16, upper)}",
        lambda: f"ghp_{_key(draw, 36)}",
        lambda: f"github_pat_{_key(draw, 22)}_{_key(draw, 59)}",
        lambda: f"glpat-{_key(draw, 20)}",
        lambda: f"xoxb-{digits(draw, '#' * 12)}-{digits(draw, '#' * 12)}-{_key(draw, 24)}",
        lambda: f"sk-proj-{_key(draw, 48)}",
        lambda: f"sk-ant-api03-{_key(draw, 93)}",
        lambda: f"sk_live_{_key(draw, 24)}",
        lambda: f"AIza{_key(draw, 35)}",
        lambda: f"hf_{_key(draw, 34)}",
        lambda: f"npm_{_key(draw, 36)}",
        lambda: f"eyJ{_key(draw, 33)}.eyJ{_key(draw, 60)}.{_key(draw, 43)}",
        lambda: _key(draw, 40, string.ascii_letters + string.digits + "/+"),
        lambda: f"-----BEGIN PRIVATE KEY-----\n{_key(draw, 64)}\n-----END PRIVATE KEY-----",
    )
    return draw.choice(made)()


def own(draw: Draw) -> str:
    word = draw.choice(OWN)
    return draw.choice([word, word.upper(), word.lower()])


def any_secret(draw: Draw) -> str:
    """One in eight is a password or a number in hexadecimal, which have no form of their own."""
    others = (f"{draw.choice(NAMES)}{draw.randrange(100)}!", _key(draw, 32, "0123456789abcdef"))
    return draw.choice(others) if draw.random() < 1 / 8 else secret(draw)


def phone(draw: Draw) -> str:
    return digits(draw, draw.choice(PHONES))


def any_phone(draw: Draw) -> str:
    return digits(draw, draw.choice([*PHONES, *OTHER_PHONES]))


KNOWN: Mapping[str, Callable[[Draw], str]] = {
    "email": email,
    "phone": phone,
    "iban": iban,
    "card": card,
    "ip": ip,
    "secret": secret,
    WORDS: own,
}
"""Values in forms that their class is told by."""

MAKERS = {**KNOWN, "phone": any_phone, "secret": any_secret}
"""And in others."""

LIKE: Mapping[str, Sequence[str | Callable[[Draw], str]]] = {
    "email": (
        lambda d: f"@{d.choice(NAMES)}",
        lambda d: f"{d.choice(NAMES)} @ {d.choice(SITES)}",
        lambda d: f"@app.route('/{d.choice(NAMES)}')",
        lambda d: f"{d.randrange(9)}@{d.randrange(9)}.{d.randrange(9)}",
        lambda d: f"package@{d.randrange(9)}.{d.randrange(20)}.{d.randrange(9)}",
    ),
    "phone": (
        "20##-0%-1#",
        "1#.0%.20##",
        "order ########",
        "No. 47##-####-##",
        "ISBN 978-3-16-148###-#",
        "%.########",
        "1#:##:## 1#:##:##",
        "% ### ### EUR",
        "52.####, 13.####",
        "1%####### ms",
    ),
    "iban": (
        lambda d: digits(d, "DE00 3704 0044 0532 0###") + " 00",
        "order AB12 #### #### #### ####",
        lambda d: _key(d, 22, string.ascii_uppercase + string.digits),
        lambda d: f"DE{digits(d, '##')} is the code",
    ),
    "card": (
        "order 1### #### #### ####",
        "tracking 9############## ",
        "EAN %############",
        "id 4###############",
        "17########### ms",
    ),
    "ip": (
        "version %.1.#.#",
        "v1#.0.#.#",
        "chapter %.#.#",
        "1#:##:##",
        lambda d: ":".join(f"{d.randrange(256):02x}" for _ in range(6)),
        lambda d: f"std::{d.choice(NAMES)}",
        lambda d: "127.0.0.1:8080",
    ),
    "secret": (
        lambda d: _key(d, 40, "0123456789abcdef"),
        lambda d: str(uuid.UUID(int=d.getrandbits(128))),
        lambda d: f"sha256:{_key(d, 64, '0123456789abcdef')}",
        lambda d: f"sha512-{_key(d, 86)}==",
        lambda d: "the password is required",
        lambda d: f"token {d.choice(NAMES)} of the sentence",
        lambda d: f"{d.choice(NAMES).title()}{d.choice(SURNAMES).title()}ControllerFactoryImpl2",
        lambda d: f"/usr/share/{d.choice(NAMES)}/lib/python3.11/site-packages/{d.choice(NAMES)}",
        lambda d: f"https://site.example/{d.choice(NAMES)}/how-to-{d.choice(SURNAMES)}-2024",
    ),
    WORDS: (
        lambda d: "bluebirds",
        lambda d: "Project",
        lambda d: "Room 12",
        lambda d: f"Holding {d.choice(NAMES)}",
    ),
}
"""What is none, but looks like one: forms of `digits`, or what draws it."""


class Line(NamedTuple):
    """A sentence, and where its planted value is; None where it has none."""

    text: str
    planted: Span | None = None


def lines(kind: str, n: int, draw: Draw) -> Iterator[Line]:
    """As many with a value as without."""
    for _ in range(n):
        value = MAKERS[kind](draw)
        text, at = framed(value, kind, draw)
        yield Line(text, Span(at, at + len(value), kind))
        like = draw.choice(LIKE[kind])
        said = digits(draw, like) if isinstance(like, str) else like(draw)
        yield Line(framed(said, "value", draw)[0])


def framed(value: str, what: str, draw: Draw) -> tuple[str, int]:
    """A sentence with a value in it, and where."""
    frame = draw.choice(FRAMES)
    said = frame.format(
        "\0", what=what, count=draw.randrange(10, 30), year=2024, name=draw.choice(NAMES).title()
    )
    at = said.index("\0")
    return said.replace("\0", value), at


def row(kind: str, n: int, draw: Draw) -> list[str]:
    rules = Redaction({kind: "mask"}, OWN if kind == WORDS else ())
    detector = detectors_of(rules)[kind]
    found = places = right = alarmed = 0
    for line in lines(kind, n, draw):
        spans = list(detector.find(line.text))
        places += len(spans)
        if line.planted is None:
            alarmed += bool(spans)
            continue
        value = line.planted
        covered = {at for one in spans for at in range(one.start, one.end)}
        found += covered.issuperset(range(value.start, value.end))
        right += sum(one.start < value.end and value.start < one.end for one in spans)
    return [kind, _rate(found, n), _rate(right, places), _rate(alarmed, n)]


def _groups(written: str) -> list[str]:
    return [written[at : at + 4] for at in range(0, len(written), 4)]


def _rate(hits: int, of: int) -> str:
    from scipy.stats import binomtest

    found = binomtest(hits, of).proportion_ci(method="wilson")
    return ends(hits / of, (found.low, found.high), 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    print(f"{given.n} sentences with a value and {given.n} without, a class; seed {given.seed}.\n")
    head = ("class", "recall, %", "precision, %", "sentences without, with a false alarm, %")
    kinds = (*EXACT, WORDS)
    show(head, (row(kind, given.n, Draw(f"{given.seed} {kind}")) for kind in kinds))


if __name__ == "__main__":
    main()
