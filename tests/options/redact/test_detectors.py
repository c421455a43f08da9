"""What each class finds and leaves; what others add; and that no text takes long."""

import json
import logging
import time
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest

from edgewise import registry
from edgewise.cloud.redaction import DETECTORS, EXACT, Redaction, Span, redaction_of
from edgewise.errors import Blocked, UsageError
from edgewise.options.redact.filter import Context, Redacted


def found(name: str, text: str) -> list[str]:
    detector = DETECTORS.load(name)()
    return [text[one.start : one.end] for one in sorted(detector.find(text))]


@pytest.mark.parametrize(
    ("name", "word"),
    [
        *(("email", one) for one in ["a@b.co", "o'neil+x@mail.example.org", "jürgen@müller.de"]),
        *(("ip", one) for one in ["10.0.0.7", "203.0.113.254", "2001:db8::8a2e:370:7334"]),
        ("ip", "fe80::1ff:fe23:4567:890a"),
        *(("card", one) for one in ["4111111111111111", "4111 1111 1111 1111"]),
        *(("card", one) for one in ["5500-0000-0000-0004", "3782 822463 10005"]),
        *(("iban", one) for one in ["DE89370400440532013000", "GB29 NWBK 6016 1331 9268 19"]),
        *(("iban", one) for one in ["fr14 2004 1010 0505 0001 3m02 606", "NO93 8601 1117 947"]),
        *(("phone", one) for one in ["+49 171 2345678", "(415) 555-2671", "0049 30 1234567"]),
        *(("phone", one) for one in ["020 7946 0958", "06 12 34 56 78", "+1-415-555-2671"]),
        *(("secret", one) for one in ["AKIAIOSFODNN7EXAMPLE", "ghp_" + "aB3" * 12]),
        *(("secret", one) for one in ["xoxb-1234567890-abcdefGHI", "sk-proj-" + "aB3-" * 9 + "x"]),
        ("secret", "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP"),
        ("secret", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzQ8kT3pLm"),
        ("secret", "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----"),
        ("secret", "-----BEGIN PRIVATE KEY-----\nMIIE, cut off"),
    ],
)
def test_found(name: str, word: str) -> None:
    assert found(name, word) == [word]
    if "cut off" not in word:
        assert found(name, f"It is ({word}), she said.") == [word]
        assert found(name, f"so: {word}.\nAnd {word}?") == [word, word]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("email", "me @ home, a@b, @anna, x@1.2, 5@6.7"),
        ("ip", "version 1.2.3.4, v10.0.1.2, 127.0.0.1, 255.255.255.0, 1.2.3, 1.2.3.4.5, 300.1.1.1"),
        ("ip", "std::vector, 12:34:56, 00:1A:2B:3C:4D:5E, ::, ::1"),
        ("card", "order 4111111111111112, 1234 5678 9012 3456, 0000000000000000"),
        ("card", "v4111111111111111"),
        ("iban", "DE00370400440532013000, XX89370400440532013000, order DE8937040044"),
        ("phone", "2024-05-01, 01/02/2024, 12345678, 3.14159265, 192.168.1.10, 4711 pieces"),
        ("secret", "3f786850e387550fdab836ed7e6dc881de23001b, the password is required"),
        ("secret", "550e8400-e29b-41d4-a716-446655440000, InternationalizationOfEverything2024"),
        ("secret", "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=, sk-1, ghp_short"),
    ],
)
def test_left(name: str, text: str) -> None:
    assert found(name, text) == []


def test_a_number_beside_others_is_found() -> None:
    assert found("card", "in 2024 4111 1111 1111 1111 12") == ["4111 1111 1111 1111"]
    assert found("iban", "DE89 3704 0044 0532 0130 00 and so on") == ["DE89 3704 0044 0532 0130 00"]


def view(redact: str) -> Redacted:
    return Redacted(redaction_of(redact))


def shown(seen: Redacted, text: str) -> str:
    return seen.of(Context(None, text)).shown.text


def test_words_are_found_whole_however_they_are_written(tmp_path: Path) -> None:
    listed = tmp_path / "words.txt"
    listed.write_text("Anna Smith\n\nÜberProjekt\nC++\n張偉\n", encoding="utf-8-sig")
    seen = view(f"words,@{listed}")
    assert shown(seen, "ANNA\nsmith, anna  smiths, überprojekt; C++! C+++; 是張偉的") == (
        "<WORD_1>, anna  smiths, <WORD_2>; <WORD_3>! <WORD_3>+; 是<WORD_4>的"
    )


@pytest.mark.parametrize(
    ("word", "written"),
    [
        *(("Wei\u00df", one) for one in ("WEISS", "weiss", "wei\u00df", "WEI\u1e9e")),
        *(("Weiss", one) for one in ("Wei\u00df", "WEISS")),
        *(("\u0130pek", one) for one in ("ipek", "IPEK", "\u0130PEK", "i\u0307pek")),
        *(("ipek", one) for one in ("\u0130pek", "IPEK")),
        *(("i\u0307pek", one) for one in ("\u0130PEK", "i\u0307pek")),
        *(("I\u015f\u0131k", one) for one in ("I\u015eIK", "\u0131\u015f\u0131k")),
        ("\u039f\u03b4\u03cc\u03c2", "\u039f\u0394\u038c\u03a3"),
    ],
)
def test_words_are_found_in_any_capitals(tmp_path: Path, word: str, written: str) -> None:
    (listed := tmp_path / "words.txt").write_text(word, encoding="utf-8")
    around = "\u1e9e\ufb03 {} \u0130."
    assert shown(view(f"@{listed}"), around.format(written)) == around.format("<WORD_1>")
    for longer in (f"x{written}", f"{written}\u00df"):
        assert shown(view(f"@{listed}"), longer) == longer


@pytest.mark.parametrize(
    ("redact", "problem"),
    [
        ("emial", "no class 'emial'.*on, off, or some of card, email"),
        ("email=hide", "'hide'.*mask, local or allow"),
        ("email,off", "no class 'off'"),
        ("", "no class ''"),
        ("words", "words"),
        ("on,words=allow,@anna", "words"),
        ("@anna,@short", "short"),
        ("@anna,@empty", "empty"),
        ("@empty", "'empty'"),
        ("@short", "'short'"),
        ("@none.txt", "none.txt"),
        ("@/dev/zero", "/dev/zero"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redact: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("anna", "Anna"), ("empty", " \n"), ("short", "a")):
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=problem):
        redaction_of(redact)


def test_what_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("x y\n")
    assert redaction_of("on").treatments == dict.fromkeys(EXACT, "mask")
    assert redaction_of(f"on,email=allow, secret=local,@{tmp_path / 'own'}").treatments == {
        **dict.fromkeys(("phone", "iban", "card", "ip", "words"), "mask"),
        "secret": "local",
    }
    assert redaction_of(f"@{tmp_path / 'own'}") == ({"words": "mask"}, ("x y",))
    assert redaction_of("off").treatments == redaction_of(None).treatments == {}


def test_a_class_whose_package_lacks_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "phonenumbers", None)
    with pytest.raises(UsageError, match=r"pip install 'edgewise\[redact\]'"):
        view("phone")


HOSTILE = [
    *("a", "a@", "a.", "@a.", "1", "1 ", "1.", "1-", "1:", ":", "-", "a:", "+1 ", "(1", "A1"),
    *("DE89 ", "password: ", "eyJ", "eyJa.", "sk-", "AKIA", "://a:", "://a:b@"),
    *("-----BEGIN PRIVATE KEY-----", "<", "<EMAIL_", "<EMAIL_1>", "&lt;", "aB3", "é", "日"),
    *("Anna ", "\n", "= "),
]


@pytest.mark.parametrize("piece", HOSTILE)
@pytest.mark.parametrize("name", [name for name in EXACT if name != "phone"])
def test_no_pattern_reads_long(name: str, piece: str) -> None:
    """What takes a second at this length would take a minute if it were square."""
    detector = DETECTORS.load(name)()
    text = piece * ((1 << 17) // len(piece))
    begun = time.thread_time()
    for _ in detector.find(text):
        pass
    assert time.thread_time() - begun < 10


@pytest.mark.deep
@pytest.mark.parametrize("piece", ["1.", "a@b.example ", "<EMAIL_1>"])
def test_a_megabyte_ends_in_bounded_time(monkeypatch: pytest.MonkeyPatch, piece: str) -> None:
    """What is found is replaced, too, however slow the machine is."""
    monkeypatch.setattr("edgewise.options.redact.filter.SECONDS", 60.0)
    seen = Redacted(
        Redaction(dict.fromkeys(("email", "ip", "secret", "words"), "mask"), ("Anna Smith",))
    )
    begun = time.thread_time()
    shown(seen, piece * ((1 << 20) // len(piece)))
    assert time.thread_time() - begun < 10


class Places:
    """Implements `Detector`: towns."""

    labels = ("PLACE",)
    spans: ClassVar[list[object]] = []
    error: Exception | None = None

    def find(self, text: str) -> Iterator[Span]:
        if self.error is not None:
            raise self.error
        at = text.find("Paris")
        if at >= 0:
            yield Span(at, at + 5, "PLACE")
        yield from self.spans  # type: ignore[misc]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> type[Places]:
    """A class of a package's own."""
    point = EntryPoint("place", f"{__name__}:Places", "edgewise.detectors")
    real = registry.entry_points
    more = {"edgewise.detectors": [point]}
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [*real(group=group), *more.get(group, [])]
    )
    monkeypatch.setattr(Places, "spans", [])
    return Places


def test_a_package_adds_a_class(added: type[Places]) -> None:
    seen = view("email,place")
    assert shown(seen, "From Paris, a@b.example.") == "From <PLACE_1>, <EMAIL_1>."
    with pytest.raises(Blocked, match="class place"):
        shown(view("place=local"), "From Paris.")


@pytest.mark.parametrize(
    "span",
    [
        *(Span(3, 2, "PLACE"), Span(0, 99, "PLACE"), Span(-1, 2, "PLACE"), Span(0, 2, "TOWN")),
        *((0, 2), None, Span(0, "2", "PLACE")),  # type: ignore[arg-type]
    ],
)
def test_nonsense_blocks(
    added: type[Places], monkeypatch: pytest.MonkeyPatch, span: object
) -> None:
    monkeypatch.setattr(added, "spans", [span])
    with pytest.raises(Blocked, match="'place'"):
        shown(view("place"), "From Rome.")


def test_a_late_detector_blocks(added: type[Places], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgewise.options.redact.filter.SECONDS", -1.0)
    with pytest.raises(Blocked, match="'place'"):
        shown(view("place"), "From Rome.")


def test_a_detector_that_raises_is_said_once(
    added: type[Places], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(added, "error", ValueError("with private words"))
    seen = view("place")
    with caplog.at_level(logging.WARNING):
        for text in ("From Rome.", "From Bonn."):
            with pytest.raises(Blocked, match=r"'place' of private words failed \(ValueError\)"):
                shown(seen, text)
    assert len(caplog.messages) == 1
    assert "private words failed" in json.dumps(caplog.messages)
    assert "with private" not in caplog.text
